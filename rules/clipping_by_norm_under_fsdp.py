"""Clipping by the norm of gradients that are sharded, which Lightning leaves to the model."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.diagnostics import Report, Rule, Severity, Source


def find(config: Config) -> Iterator[Report]:
    """A report where Lightning's FSDP is to clip gradients by their norm."""
    clip, algorithm = config.get("trainer.gradient_clip_val"), config.value("trainer.gradient_clip_algorithm")
    strategy = config.first("trainer.strategy.class_path", "trainer.strategy")
    if clip is None or not isinstance(clip.value, int | float) or clip.value <= 0 or strategy is None:
        return
    name = str(strategy.value).rpartition(".")[2]
    if name in ("fsdp", "fsdp_cpu_offload", "FSDPStrategy") and algorithm in (None, "norm"):
        yield report(
            clip,
            "Lightning does not clip by norm under FSDP, and fails at the first step, unless the module overrides "
            "configure_gradient_clipping",
            help="override it to call self.trainer.model.clip_grad_norm_, or set gradient_clip_algorithm: value",
            related=[(strategy, "FSDP")],
        )


RULE = Rule(
    code="OP306",
    name="clipping-by-norm-under-fsdp",
    severity=Severity.ERROR,
    summary="Lightning is to clip gradients by their norm under FSDP.",
    why="The norm is over all shards, and Lightning's precision plugin can not compute it: it raises "
    "`gradient_clip_algorithm='norm' is currently not supported for FSDPPrecision` at the first optimizer step. A "
    "module may do it itself, which no config shows; so this rule speaks only when asked to.",
    instead="`configure_gradient_clipping` in the module, or clipping by value.",
    sources=(Source(title="Lightning 2.6.6", where="lightning/pytorch/plugins/precision/fsdp.py, clip_grad_by_norm"),),
    find=find,
    dialects=("lightning",),
    opt_in=True,
)
