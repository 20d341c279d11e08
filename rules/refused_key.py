"""A key that the framework still knows, only to refuse it."""

from collections.abc import Iterator

from planner.configs.config import Config
from planner.configs.renames import keys_refused_by_name
from planner.diagnostics import Report, Rule, Severity, Source


def find(config: Config) -> Iterator[Report]:
    """A report for each such key that is on, or set to anything."""
    return keys_refused_by_name(config, is_certain=True)


RULE = Rule(
    code="KEY101",
    name="refused-key",
    severity=Severity.ERROR,
    summary="A key of the past that the framework refuses by name where it is switched on.",
    why="The framework keeps such keys in its schema to say that they are gone: the run ends while the config is read. "
    "Among them are all `unsloth_*` keys of axolotl, whose kernels it replaced by its own. Where nothing says which "
    "release the run has, `removed-key-of-older-releases` reports it.",
    instead="What the note says; mostly another key took its place.",
    sources=(
        Source(title="axolotl 0.19.0", where="utils/schemas/deprecated.py"),
        Source(title="axolotl 0.19.0", where="utils/schemas/validation.py, check_deprecated_unsloth_fields"),
    ),
    find=find,
    dialects=("axolotl",),
)
