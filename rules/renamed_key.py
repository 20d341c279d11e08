"""A key that has a new name: the old one is still read, and will not be for long."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.configs.dialect import parse_version
from planner.configs.keys import is_read, release_of
from planner.configs.renames import replacement
from planner.diagnostics import FixSafety, Report, Rule, Severity, Source


def find(config: Config) -> Iterator[Report]:
    """A report for each key that is read under its old name."""
    for setting in config.settings():
        schema = config.dialect.key_schema(setting.key)
        deprecated = schema.get("x-deprecated") if schema else None
        if not schema or not deprecated or not is_read(config, schema):
            continue
        if release_of(config, schema) >= parse_version(deprecated):
            use = schema.get("x-use", "")
            removed = f" and gone from {schema['x-removed']} on" if "x-removed" in schema else ""
            yield report(
                setting.at_key,
                f"{setting.key.rpartition('.')[2]!r} is deprecated since {config.dialect.framework_of(schema)} "
                f"{deprecated}{removed}",
                help=schema.get("x-note") or (f"use {use}" if use else ""),
                fix=replacement(config, setting, use, same=schema.get("x-same", False)),
            )


RULE = Rule(
    code="KEY006",
    name="renamed-key",
    severity=Severity.WASTE,
    summary="A key that is deprecated: it is still read, and a later release will not.",
    why="A later release of the framework refuses the config, or drops the key without a word. Until then nothing is "
    "lost, so this is only reported on request: `planner lint --extend-select KEY006 --fix` renames what can be "
    "renamed.",
    instead="The new key.",
    sources=(Source(title="transformers 5.24", where="src/transformers/training_args.py: gradient_checkpointing"),),
    find=find,
    fix=FixSafety.SAFE,
    opt_in=True,
)
