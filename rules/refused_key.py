"""A key that the framework still knows, only to refuse it."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.configs.dialect import parse_version
from planner.configs.keys import release_of
from planner.diagnostics import Report, Rule, Severity, Source


def find(config: Config) -> Iterator[Report]:
    """A report for each such key that is on, or set to anything."""
    for setting in config.settings():
        schema = config.dialect.key_schema(setting.key)
        since = schema.get("x-refused-since") if schema else None
        if schema and since and setting.value and release_of(config, schema) >= parse_version(since):
            yield report(
                setting.at_key,
                f"{config.dialect.framework} {since} and later refuse {setting.key!r}, and the run ends at its start",
                help=schema.get("x-note", ""),
            )


RULE = Rule(
    code="KEY101",
    name="refused-key",
    severity=Severity.ERROR,
    summary="A key of the past that the framework refuses by name where it is switched on.",
    why="The framework keeps such keys in its schema to say that they are gone: the run ends while the config is read. "
    "Among them are all `unsloth_*` keys of axolotl, whose kernels it replaced by its own.",
    instead="What the note says; mostly another key took its place.",
    sources=(
        Source(title="axolotl 0.19.0", where="utils/schemas/deprecated.py"),
        Source(title="axolotl 0.19.0", where="utils/schemas/validation.py, check_deprecated_unsloth_fields"),
    ),
    find=find,
    dialects=("axolotl",),
)
