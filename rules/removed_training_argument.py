"""A training argument that the release to check against no longer has; a script may have one of its name."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.configs.dialect import parse_version
from planner.configs.keys import release_of
from planner.configs.renames import replacement
from planner.diagnostics import FixSafety, Report, Rule, Severity, Source


def find(config: Config) -> Iterator[Report]:
    """A report for each argument that was removed."""
    for entry in config.root.entries:
        schema, setting = config.dialect.key_schema(entry.key), config.get(entry.key)
        removed = schema.get("x-removed") if schema else None
        if schema is None or setting is None or not removed or release_of(config, schema) < parse_version(removed):
            continue
        use = schema.get("x-use", "")
        yield report(
            setting.at_key,
            f"{config.dialect.framework_of(schema)} {removed} removed {entry.key!r}: its parser refuses it, unless the "
            "script has an argument of that name",
            help=schema.get("x-note") or (f"use {use}" if use else "remove it"),
            fix=replacement(config, setting, use, same=schema.get("x-same", False)),
        )


RULE = Rule(
    code="KEY203",
    name="removed-training-argument",
    severity=Severity.ERROR,
    summary="An argument of Transformers or TRL that the release to check against has removed.",
    why="HfArgumentParser and TrlParser end with a list of arguments that nobody knows, after an upgrade that nobody "
    "thought of. Which release is installed, and whether a script has arguments of its own, a config does not show: "
    "hence this rule is silent unless asked for, best together with `target-version`.",
    instead="What took the argument's place.",
    sources=(
        Source(title="transformers 4.40 to 5.24", where="src/transformers/training_args.py: TrainingArguments"),
        Source(title="TRL 0.12 to 1.16", where="trl/trainer/*_config.py: fields"),
    ),
    find=find,
    dialects=("transformers", "trl"),
    opt_in=True,
    fix=FixSafety.SAFE,
)
