"""Edits that change one setting of a file and leave every other byte as it is.

Each builder gives the edits, or none where the format cannot say it or what would change is not the setting alone, such
as a value with a YAML anchor that others refer to. A fix without edits cannot be applied.

How they are made is imported only where something is to be mended: rules import this module on every run.
"""

from planner.configs.config import Setting
from planner.diagnostics import Edit


def rename_key(setting: Setting, name: str) -> tuple[Edit, ...]:
    """The edits that give a setting's key another name, in the quotes that the old one has.

    In a shell script the name has dashes instead of underscores where the command's flags have them.
    """
    from planner.configs.edits import builders

    return builders.rename_key(setting, name)


def set_value(setting: Setting, value: object) -> tuple[Edit, ...]:
    """The edits that give a setting another value: text, a number, true, false, None, or lists and dicts of them.

    Text keeps the quotes that the old value has. There are none where it has this value already.
    """
    from planner.configs.edits import builders

    return builders.set_value(setting, value)


def remove(setting: Setting) -> tuple[Edit, ...]:
    """The edits that remove a setting, with its line or lines and the comment on them."""
    from planner.configs.edits import builders

    return builders.remove(setting)


def insert_sibling(setting: Setting, key: str, value: object) -> tuple[Edit, ...]:
    """The edits that add a key after a setting, at the same level and written as that is; none where it is there."""
    from planner.configs.edits import builders

    return builders.insert_sibling(setting, key, value)
