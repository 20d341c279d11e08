"""Transformer Engine's fused cross entropy, which Megatron-LM took out of service."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.configs.edits import set_value
from planner.diagnostics import Fix, FixSafety, Report, Rule, Severity, Source

_FIRST_REFUSING = (0, 19, 0)


def find(config: Config) -> Iterator[Report]:
    """A report where the loss is fused by Transformer Engine."""
    fusion, impl = config.on("cross-entropy-loss-fusion"), config.get("cross-entropy-fusion-impl")
    if fusion is None or impl is None or impl.value != "te" or config.target < _FIRST_REFUSING:
        return
    yield report(
        impl,
        "Megatron-LM 0.19 refuses Transformer Engine's cross entropy, which was found unstable",
        help="use native",
        related=[(fusion, "the loss is fused here")],
        fix=Fix(title="Write native", safety=FixSafety.UNSAFE, edits=set_value(impl, "native")),
    )


RULE = Rule(
    code="LS401",
    name="transformer-engine-cross-entropy",
    severity=Severity.ERROR,
    summary="The cross entropy is fused by Transformer Engine, which Megatron-LM 0.19 refuses.",
    why="Megatron-LM asserts before training that `--cross-entropy-fusion-impl te` is not used with "
    "`--cross-entropy-loss-fusion`, for stability. The native fusion saves the same copies of the logits.",
    instead="`--cross-entropy-fusion-impl native`.",
    sources=(
        Source(title="Megatron-LM, megatron-core 0.19.0", where="megatron/training/arguments.py: validate_args"),
        Source(title="Megatron-LM, megatron-core 0.18.0, which takes it", where="megatron/training/arguments.py"),
    ),
    find=find,
    dialects=("megatron",),
    fix=FixSafety.UNSAFE,
)
