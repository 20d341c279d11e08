"""Megatron's optimizer offload is part of the precision-aware optimizer."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.diagnostics import Report, Rule, Severity, Source


def find(config: Config) -> Iterator[Report]:
    """A report where optimizer state is to be offloaded without the optimizer that can do it."""
    offload = config.on("optimizer-cpu-offload")
    if (
        offload is not None
        and config.get("use-precision-aware-optimizer") is None
        and "$unknown" not in config.root.by_key
    ):
        yield report(
            offload.at_key,
            "--optimizer-cpu-offload needs --use-precision-aware-optimizer, whose code it runs in: Megatron-LM "
            "asserts it",
            help="add --use-precision-aware-optimizer",
        )


RULE = Rule(
    code="OP401",
    name="optimizer-offload-without-precision-aware",
    severity=Severity.ERROR,
    summary="--optimizer-cpu-offload is given without --use-precision-aware-optimizer.",
    why="The optimizer that holds part of its state on the host is built on the precision-aware one. Megatron-LM "
    "asserts both before training.",
    instead="Both flags.",
    sources=(Source(title="Megatron-LM, megatron-core 0.19.2", where="megatron/training/arguments.py: validate_args"),),
    find=find,
    dialects=("megatron",),
)
