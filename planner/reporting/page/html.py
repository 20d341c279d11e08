"""HTML elements as text. Whatever is not `Markup` is escaped, so that no name from a plan or a spec can become code."""

import json
import re
from collections.abc import Iterable
from html import escape
from typing import Any

_QUANTITY = re.compile(r"(\d) (GB|ms|s)\b")
_VOID = frozenset({"meta", "link", "wbr"})


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


Child = str | None


def tag(name: str, /, *children: Child, **attributes: str | int | bool | None) -> Markup:
    """The element.

    Args:
        name: of the element.
        children: markup as it is, other text escaped; None for nothing.
        attributes: `class_` for class, `aria_label` for aria-label; True for one without value, None or False for none.
    """
    written = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in _VOID:
        return Markup(f"<{name}{written}>")
    return Markup(f"<{name}{written}>{join(children)}</{name}>")


def join(children: Iterable[Child]) -> Markup:
    """The children one after another, escaped where they are not markup."""
    return Markup("".join(_escaped(child) for child in children if child is not None))


def data_block(identity: str, data: Any) -> Markup:
    """Data for the page's script, which no text in it can end."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(f'<script type="application/json" id="{identity}">{text}</script>')


def _escaped(text: str) -> str:
    """Text that is no markup yet, escaped; numbers and their units stay on one line."""
    return text if isinstance(text, Markup) else _QUANTITY.sub("\\1\u00a0\\2", escape(text, quote=False))


def _attribute(key: str, value: str | int | bool | None) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{escape(str(value))}"'
