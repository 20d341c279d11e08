"""Checkpoints of layers can be divided among tensor-parallel ranks only in one setting."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.configs.facts import Checkpointing
from planner.configs.megatron import cores
from planner.diagnostics import Report, Rule, Severity, Source


def find(config: Config) -> Iterator[Report]:
    """A report for each reason why saved activations cannot be distributed."""
    for core in cores(config):
        asked = core.asked("distribute_saved_activations")
        if asked is None:
            continue
        kind, _ = core.recompute
        sequence_parallel = core.asked("sequence_parallel")
        one_rank = core.number("tensor_model_parallel_size") == 1
        if one_rank:
            yield report(
                asked,
                "saved activations are distributed among tensor-parallel ranks, and there is one",
                help="remove it, or set the tensor-parallel size to 2 or more",
            )
        if kind in (Checkpointing.NONE, Checkpointing.SELECTIVE):
            yield report(
                asked,
                "saved activations are distributed only with full recomputation, which is not on",
                help=f"set {core.key('recompute_granularity')} to full with a method, or remove this",
            )
        if sequence_parallel is not None and not one_rank:
            yield report(
                asked,
                "with sequence parallelism each rank keeps its share of an activation already, and Megatron-Core "
                "refuses to distribute them again",
                help="remove it: sequence parallelism saves as much without the gathering",
                related=[(sequence_parallel, "sequence parallelism is on here")],
            )


RULE = Rule(
    code="RC405",
    name="saved-activations-not-distributable",
    severity=Severity.ERROR,
    summary="Saved activations are to be distributed without full recomputation, with one rank, or beside sequence "
    "parallelism.",
    why="`distribute_saved_activations` divides the inputs of recomputed layers among tensor-parallel ranks. "
    "Megatron-LM asserts what that needs before training.",
    instead="Sequence parallelism, which saves as much and more, or full recomputation with a tensor-parallel size "
    "above 1.",
    sources=(
        Source(title="Megatron-LM, megatron-core 0.19.2", where="megatron/training/arguments.py: validate_args"),
        Source(
            title="Megatron-Core 0.19.2",
            where="megatron/core/transformer/transformer_config.py: TransformerConfig.__post_init__",
        ),
    ),
    find=find,
    dialects=("megatron",),
)
