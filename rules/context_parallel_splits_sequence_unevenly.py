"""Context parallelism cuts each sequence in twice as many pieces as there are ranks."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.configs.megatron import cores
from planner.diagnostics import Report, Rule, Severity, Source

_PIECES_PER_RANK = 2  # an early and a late one, so that causal attention is the same work for all


def find(config: Config) -> Iterator[Report]:
    """A report where the sequence length is no multiple of twice the context-parallel degree."""
    for core in cores(config):
        length, degree = core.number("seq_length"), core.number("context_parallel_size")
        setting = core.get("seq_length")
        if length is None or degree is None or degree <= 1 or setting is None:
            continue
        pieces = _PIECES_PER_RANK * degree
        if length % pieces:
            near = -(-length // pieces) * pieces
            context = core.get("context_parallel_size")
            yield report(
                setting,
                f"{length:,} tokens cannot be cut in the {pieces} equal pieces that context parallelism of {degree} "
                f"needs: {config.dialect.framework} stops at the start",
                help=f"use a multiple of {pieces}, such as {near}",
                related=[(context, f"{degree} ranks")] if context is not None else [],
            )


RULE = Rule(
    code="PL402",
    name="context-parallel-splits-sequence-unevenly",
    severity=Severity.ERROR,
    summary="The sequence length is no multiple of twice the context-parallel degree.",
    why="Each rank gets an early and a late piece of every sequence, so that causal attention is equal work for all. "
    "Megatron-LM asserts that the pieces are equal before training.",
    instead="A sequence length that is a multiple of twice the context-parallel degree.",
    sources=(
        Source(title="Megatron-LM, megatron-core 0.19.2", where="megatron/training/arguments.py: validate_args"),
        Source(title="Megatron-Bridge 0.6.2", where="megatron/bridge/training/config.py: ConfigContainer.validate"),
        Source(
            title="NeMo 2.0.0",
            where="nemo/collections/nlp/models/language_modeling/megatron_gpt_model.py: "
            "get_batch_on_this_context_parallel_rank",
        ),
    ),
    find=find,
    dialects=("megatron", "megatron_bridge", "nemo"),
)
