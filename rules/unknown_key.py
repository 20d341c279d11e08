"""A key that the framework does not know and drops without a word."""

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

from planner.configs.config import Config, Setting, report
from planner.configs.dialect import UnknownKeys
from planner.diagnostics import Edit, Fix, FixSafety, Report, Rule, Severity, Source


def find(config: Config) -> Iterator[Report]:
    """A report for each key that is dropped; a misspelt one with what was meant."""
    for setting in config.settings():
        outer, _, name = setting.key.rpartition(".")
        schema = config.dialect.key_schema(outer) if outer else config.dialect.schema
        if schema is None or "properties" not in schema or name in schema["properties"]:
            continue
        if schema.get("x-unknown-keys", config.dialect.unknown_keys) == UnknownKeys.DROPPED:
            yield _dropped(config, setting, name, schema["properties"])


def _dropped(config: Config, setting: Setting, name: str, known: Mapping[str, Any]) -> Report:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
    message = f"{config.dialect.framework} does not know {name!r} and drops it without a word"
    if not close:
        return report(setting.at_key, message)
    edit = Edit(document=setting.document, start=setting.at_key.start, end=setting.at_key.end, text=close[0])
    fix = Fix(title=f"Rename to {close[0]}", safety=FixSafety.UNSAFE, edits=(edit,))
    return report(setting.at_key, message, help=f"did you mean {close[0]!r}?", fix=fix)


RULE = Rule(
    code="KEY001",
    name="unknown-key",
    severity=Severity.NO_OP,
    summary="A key that the framework does not know and silently drops.",
    why="What the key was to switch on stays off, and nothing says so.",
    instead="The key that was meant; remove what is from another framework.",
    sources=(Source(title="axolotl 067b021", where="src/axolotl/utils/schemas/*.py: pydantic, extra=ignore"),),
    find=find,
    fix=FixSafety.UNSAFE,
)
