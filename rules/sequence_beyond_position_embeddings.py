"""Sequences longer than the positions that a model has."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.diagnostics import Report, Rule, Severity, Source


def find(config: Config) -> Iterator[Report]:
    """A report where the sequence length is above the number of positions."""
    length, positions = config.facts.sequence_length, config.get("max_position_embeddings")
    if length is None or length.setting is None or positions is None or not isinstance(positions.value, int):
        return
    if length.value > positions.value:
        yield report(
            length.setting,
            f"seq_length {length.value} is more than max_position_embeddings {positions.value}",
            help=f"set max_position_embeddings to {length.value}",
            related=[(positions, "the positions")],
        )


RULE = Rule(
    code="PK305",
    name="sequence-beyond-position-embeddings",
    severity=Severity.ERROR,
    summary="Sequences are longer than the model's position embeddings.",
    why="GPT-NeoX refuses the config: `max_position_embeddings must be bigger or equal seq_length`.",
    instead="A `max_position_embeddings` of at least `seq_length`.",
    sources=(Source(title="GPT-NeoX main", where="megatron/neox_arguments/arguments.py, validate_values"),),
    find=find,
    dialects=("gpt_neox",),
)
