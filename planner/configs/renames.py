"""Keys that a release has ceased to take: reports on them, what took their place, and the fix that puts it there.

A key that a release refuses is an error only where the run surely has that release: the config may be older.
"""

from collections.abc import Iterator

from planner.configs.config import Config, Setting, report
from planner.configs.dialect import UnknownKeys, parse_version
from planner.configs.edits import rename_key
from planner.configs.keys import UnreadKey, is_surely_of, release_of, unread_keys
from planner.diagnostics import Fix, FixSafety, Report

_UNCERTAIN = "whether the run has that release is not known"


def dropped_keys(config: Config) -> Iterator[Report]:
    """A report for each key that a release up to the one that is checked against has ceased to read, silently."""
    for key in _removed(config, UnknownKeys.DROPPED):
        yield _removal(config, key, "and it is dropped without a word")


def refused_keys(config: Config, *, is_certain: bool) -> Iterator[Report]:
    """A report for each key that a release up to the one that is checked against has removed, and refuses.

    Args:
        config: The config.
        is_certain: Whether the keys are meant of which it is certain that the run has that release, or all others.
    """
    consequence = "and the run will not start" if is_certain else f"and refuses it: {_UNCERTAIN}"
    for key in _removed(config, UnknownKeys.REJECTED):
        framework = (config.dialect.key_schema(key.setting.key) or {}).get("x-of", config.dialect.name)
        if is_surely_of(config, framework, key.removed_in) is is_certain:
            yield _removal(config, key, consequence)


def keys_refused_by_name(config: Config, *, is_certain: bool) -> Iterator[Report]:
    """A report for each key that a release still knows, only to refuse it where it is on or set to anything.

    Args:
        config: The config.
        is_certain: As for `refused_keys`.
    """
    consequence = ", and the run ends at its start" if is_certain else f": {_UNCERTAIN}"
    for setting in config.settings():
        schema = config.dialect.key_schema(setting.key)
        since = schema.get("x-refused-since") if schema else None
        if schema is None or not since or not setting.value or release_of(config, schema) < parse_version(since):
            continue
        if is_surely_of(config, schema.get("x-of", config.dialect.name), since) is is_certain:
            yield report(
                setting.at_key,
                f"{config.dialect.framework} {since} and later refuse {setting.key!r}{consequence}",
                help=schema.get("x-note", ""),
            )


def _removed(config: Config, fate: UnknownKeys) -> Iterator[UnreadKey]:
    """Keys that were removed; none that is empty, or has the value that holds without it."""
    for key in unread_keys(config):
        schema = config.dialect.key_schema(key.setting.key) or {}
        asks_for_something = key.setting.value is not None and key.setting.value != schema.get("default")
        if key.fate is fate and key.removed_in and asks_for_something:
            yield key


def _removal(config: Config, key: UnreadKey, consequence: str) -> Report:
    framework = config.dialect.framework_of(config.dialect.key_schema(key.setting.key) or {})
    return report(
        key.setting.at_key,
        f"{framework} {key.removed_in} removed {key.setting.key.rpartition('.')[2]!r}, {consequence}",
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
