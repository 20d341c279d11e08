"""Temporary."""

from planner.configs.config import Setting
from planner.diagnostics import Edit


def rename_key(setting: Setting, name: str) -> tuple[Edit, ...]:
    """X."""
    place = setting.at_key
    return (Edit(document=place.document, start=place.start, end=place.end, text=name),)


def set_value(setting: Setting, value: object) -> tuple[Edit, ...]:
    """X."""
    place = setting.at_value
    return (Edit(document=place.document, start=place.start, end=place.end, text=str(value)),)


def remove(setting: Setting) -> tuple[Edit, ...]:
    """X."""
    return ()
