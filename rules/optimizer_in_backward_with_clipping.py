"""Gradients that are freed within backward cannot be clipped by their common norm."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.diagnostics import Report, Rule, Severity, Source


def find(config: Config) -> Iterator[Report]:
    """A report where gradients are clipped and the optimizer runs in backward."""
    in_backward, clipping = config.facts.optimizer_in_backward, config.get("clip_grad_norm")
    if in_backward is None or not in_backward.value or in_backward.setting is None:
        return
    if clipping is None or clipping.value is None:
        return
    yield report(
        clipping,
        "clip_grad_norm needs all gradients at once, but an optimizer in backward frees each as it comes",
        help="set clip_grad_norm: null, or optimizer_in_bwd: false",
        related=[(in_backward.setting, "the optimizer runs in backward")],
    )


RULE = Rule(
    code="OP302",
    name="optimizer-in-backward-with-clipping",
    severity=Severity.ERROR,
    summary="Gradients are to be clipped by their norm, but the optimizer frees each of them within backward.",
    why="The norm is over the gradients of all parameters, which never exist at the same time. torchtune refuses.",
    instead="`clip_grad_norm: null`, or `optimizer_in_bwd: false` and the memory of all gradients.",
    sources=(Source(title="torchtune 0.6.1", where="recipes/full_finetune_distributed.py, __init__"),),
    find=find,
    dialects=("torchtune",),
)
