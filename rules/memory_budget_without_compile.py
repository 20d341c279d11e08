"""A memory budget for activations is kept by the compiler; without it there is none."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.diagnostics import Report, Rule, Severity, Source


def find(config: Config) -> Iterator[Report]:
    """A report where checkpointing is to follow a memory budget and the model is not compiled."""
    mode, compiled = config.get("activation_checkpoint.mode"), config.facts.compile
    if mode is None or mode.value != "memory_budget" or compiled is None or compiled.value:
        return
    yield report(
        mode,
        "memory_budget is a mode of torch.compile, and the model is not compiled",
        help='set enable = true under [compile], with "model" among its components, or mode = "selective"',
        related=[(compiled.setting, "the model is not compiled")],
    )


RULE = Rule(
    code="RC302",
    name="memory-budget-without-compile",
    severity=Severity.ERROR,
    summary="Activation checkpointing is to follow a memory budget, and the model is not compiled.",
    why="What to recompute under the budget is decided by torch.compile's partitioner. torchtitan stops with an "
    "assertion, `Memory budget mode requires model to be compiled`.",
    instead='`[compile] enable = true` with `model` among the components, or `mode = "selective"` or `"full"`.',
    sources=(Source(title="torchtitan 0.2.2", where="torchtitan/distributed/activation_checkpoint.py, apply_ac"),),
    find=find,
    dialects=("torchtitan",),
)
