"""Activations divided among one rank."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.diagnostics import Report, Rule, Severity, Source


def find(config: Config) -> Iterator[Report]:
    """A report where checkpoints are partitioned and the file says that there is one model-parallel rank."""
    partitioned, degree = config.on("partition_activations"), config.facts.tensor_parallel
    if partitioned is not None and degree is not None and degree.value == 1 and degree.setting is not None:
        yield report(
            partitioned,
            "partitioning divides each checkpoint among one model-parallel rank, and so saves nothing",
            help="remove it, or raise model_parallel_size",
            related=[(degree.setting, "one rank")],
        )


RULE = Rule(
    code="RC307",
    name="partitioned-activations-without-model-parallelism",
    severity=Severity.NO_OP,
    summary="Checkpoints are to be partitioned among model-parallel ranks, of which there is one.",
    why="Each rank keeps its share of a checkpoint and gathers it for backward. The share of one rank is all of it, "
    "and only the copying is left. GPT-NeoX's own configs have the switch on; so this rule speaks only when asked to.",
    instead="`partition_activations: false`.",
    sources=(Source(title="DeepSpeed 0.17.5", where="deepspeed/runtime/activation_checkpointing/checkpointing.py"),),
    find=find,
    dialects=("gpt_neox",),
    opt_in=True,
)
