"""The builders of edits: which way of writing an entry is meant, and what may not be edited at all."""

from planner.configs.config import Setting
from planner.configs.edits.blocks import (
    Replacement,
    insert_line,
    is_table,
    is_written_once,
    remove_lines,
    set_block_value,
)
from planner.configs.edits.flags import insert_flag, remove_flag, rename_flag, set_flag
from planner.configs.edits.flow import insert_item, remove_item
from planner.configs.edits.layout import is_explicit, is_flow, parent_of
from planner.configs.edits.literals import key_literal, literal
from planner.configs.tree import Mapping, Scalar, SourceFormat
from planner.diagnostics import Edit


def rename_key(setting: Setting, name: str) -> tuple[Edit, ...]:
    """The edits that give a setting's key another name, in the quotes that the old one has."""
    document, entry = setting.document, setting.entry
    mapping = parent_of(setting)
    if mapping is None or entry.key == name or any(other.key == name for other in mapping.entries):
        return ()
    if document.format is SourceFormat.SHELL:
        return _edits(setting, rename_flag(document, mapping, entry, name))
    old = document.text[entry.key_start : entry.key_end]
    is_elsewhere_too = document.format is SourceFormat.TOML and not is_written_once(document, entry)
    if old[:1] in ("&", "*", "!", "|", ">") or is_elsewhere_too:
        return ()
    written = key_literal(name, document.format, old)
    return () if written is None else _edits(setting, [(entry.key_start, entry.key_end, written)])


def set_value(setting: Setting, value: object) -> tuple[Edit, ...]:
    """The edits that give a setting another value: text, a number, true, false, None, or lists and dicts of them."""
    document, entry = setting.document, setting.entry
    node = entry.value
    if isinstance(node, Scalar) and node.value == value and type(node.value) is type(value):
        return ()
    if document.format is SourceFormat.SHELL:
        return _edits(setting, set_flag(document, entry, value))
    is_item = entry.key_start == node.start  # of a list, which has no key
    if document.format is SourceFormat.YAML and not is_item:
        return _edits(setting, set_block_value(document, entry, value))
    if not isinstance(node, Scalar) and (
        is_item or (document.format is SourceFormat.TOML and is_table(document, entry))
    ):
        return ()
    old = document.text[node.start : node.end]
    written = literal(value, document.format, old if isinstance(node, Scalar) else "")
    if written is None or old[:1] in ("&", "|", ">", ""):
        return ()
    return _edits(setting, [(node.start, node.end, written)])


def remove(setting: Setting) -> tuple[Edit, ...]:
    """The edits that remove a setting, with its line or lines and the comment on them."""
    document, entry = setting.document, setting.entry
    mapping = parent_of(setting)
    if mapping is None or is_explicit(document, entry):
        return ()
    if document.format is SourceFormat.SHELL:
        return _edits(setting, remove_flag(document, entry))
    remove_from = remove_item if _has_commas(setting, mapping) else remove_lines
    return _edits(setting, remove_from(document, mapping, entry))


def insert_sibling(setting: Setting, key: str, value: object) -> tuple[Edit, ...]:
    """The edits that add a key after a setting, at the same level and written as that is."""
    document, entry = setting.document, setting.entry
    mapping = parent_of(setting)
    is_there = mapping is not None and any(other.key == key for other in mapping.entries)
    if mapping is None or is_there or is_explicit(document, entry):
        return ()
    if document.format is SourceFormat.SHELL:
        return _edits(setting, insert_flag(document, mapping, entry, key, value))
    insert_into = insert_item if _has_commas(setting, mapping) else insert_line
    return _edits(setting, insert_into(document, mapping, entry, key, value))


def _has_commas(setting: Setting, mapping: Mapping) -> bool:
    return setting.document.format is SourceFormat.JSON or is_flow(setting.document, mapping)


def _edits(setting: Setting, replacements: list[Replacement]) -> tuple[Edit, ...]:
    """Replacements as edits, those that touch as one, so that their order is no question."""
    merged: list[Replacement] = []
    for start, end, text in replacements:
        if merged and merged[-1][1] == start:
            first, _, before = merged.pop()
            start, text = first, before + text
        merged.append((start, end, text))
    return tuple(Edit(document=setting.document, start=start, end=end, text=text) for start, end, text in merged)
