"""What took the place of a key, and the fix that puts it there."""

from collections.abc import Iterator

from planner.configs.config import Config, Setting, report
from planner.configs.dialect import UnknownKeys
from planner.configs.edits import rename_key
from planner.configs.keys import unread_keys
from planner.diagnostics import Fix, FixSafety, Report


def removed_keys(config: Config, fate: UnknownKeys, consequence: str) -> Iterator[Report]:
    """A report for each key that a release up to the one that is checked against has ceased to read.

    None for a key that is empty, or has the value that holds without it.
    """
    for key in unread_keys(config):
        schema = config.dialect.key_schema(key.setting.key) or {}
        asks_for_something = key.setting.value is not None and key.setting.value != schema.get("default")
        if key.fate is fate and key.removed_in and asks_for_something:
            framework = config.dialect.framework_of(schema)
            name = key.setting.key.rpartition(".")[2]
            yield report(
                key.setting.at_key,
                f"{framework} {key.removed_in} removed {name!r}, {consequence}",
                help=key.note or (f"use {key.use}" if key.use else ""),
                fix=replacement(config, key.setting, key.use, same=key.same),
            )


def replacement(config: Config, setting: Setting, use: str, *, same: bool) -> Fix | None:
    """The fix that renames a key to the one that takes its place, where both stand side by side and mean the same."""
    outer, _, _ = setting.key.rpartition(".")
    new_outer, _, new_name = use.rpartition(".")
    if not same or not use or outer != new_outer or config.get(use) is not None:
        return None
    return Fix(title=f"Rename to {new_name}", safety=FixSafety.SAFE, edits=rename_key(setting, new_name))
