"""Checkpoints in one buffer, which DeepSpeed makes of partitioned ones only."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.diagnostics import Report, Rule, Severity, Source


def find(config: Config) -> Iterator[Report]:
    """A report where checkpoints are to be contiguous and the file says that they are not partitioned."""
    contiguous, partitioned = config.on("contiguous_checkpointing"), config.get("partition_activations")
    if contiguous is not None and partitioned is not None and partitioned.value is False:
        yield report(
            contiguous,
            "contiguous checkpoints need partitioned activations, which are off",
            help="set partition_activations to true, or contiguous_checkpointing to false",
            related=[(partitioned, "off here")],
        )


RULE = Rule(
    code="RC306",
    name="contiguous-checkpoints-without-partitioning",
    severity=Severity.ERROR,
    summary="Checkpoints are to lie in one buffer, and are not partitioned among model-parallel ranks.",
    why="DeepSpeed stops with the assertion `Contiguous Checkpointing is only available with partitioned activations`.",
    instead="`partition_activations: true` with it.",
    sources=(Source(title="DeepSpeed 0.17.5", where="deepspeed/runtime/activation_checkpointing/checkpointing.py"),),
    find=find,
    dialects=("gpt_neox",),
)
