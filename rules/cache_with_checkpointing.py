"""The cache of keys and values is asked for, and checkpointing switches it off."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.configs.facts import Checkpointing
from planner.diagnostics import Report, Rule, Severity, Source


def find(config: Config) -> Iterator[Report]:
    """A report where use_cache is on together with checkpointing."""
    cache, checkpointing = config.on("use_cache"), config.facts.checkpointing
    if cache is None or checkpointing is None or checkpointing.value is not Checkpointing.FULL:
        return
    yield report(
        cache,
        "use_cache is switched off again in every layer that is checkpointed",
        help="remove use_cache; training does not read a cache",
        related=[(checkpointing.setting, "checkpointing is on here")] if checkpointing.setting else [],
    )


RULE = Rule(
    code="RC204",
    name="cache-with-checkpointing",
    severity=Severity.NO_OP,
    summary="use_cache is on, and so is checkpointing.",
    why="A layer that is recomputed would write its keys and values twice, so Transformers takes the cache away and "
    "warns. Without checkpointing, the cache would hold keys and values of all layers for nothing.",
    instead="No `use_cache`: it is off in training by default.",
    sources=(
        Source(title="transformers 5.24", where="src/transformers/modeling_layers.py: GradientCheckpointingLayer"),
    ),
    find=find,
    dialects=("transformers", "trl"),
)
