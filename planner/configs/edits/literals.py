"""Keys and values as the text that a format needs for them; None where it cannot say them.

Text keeps the quotes of what it replaces where these will do, and has quotes of its own only where it needs them.
"""

import json
import re
from collections.abc import Callable, Mapping

from planner.configs.tree import SourceFormat

_JSON_CANNOT = re.compile("[\ud800-\udfff]")
# What double quotes in YAML and TOML need escapes for besides what JSON escapes: what does not print, and line ends.
_UNPRINTABLE = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
_YAML_PLAIN = re.compile(r"[A-Za-z_/][\w./+@%=-]*(?::[\w./+@%=-]+)*", re.ASCII)
_YAML_WORDS = frozenset(("null", "true", "false", "yes", "no", "on", "off", "y", "n"))
_TOML_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_SHELL_WORD = re.compile(r"[\w./:@%+=,-]+", re.ASCII)
_SHELL_NAME = re.compile(r"[A-Za-z][\w.-]*", re.ASCII)


def literal(value: object, source_format: SourceFormat, old: str = "") -> str | None:
    """A value as text.

    Args:
        value: Text, a number, true, false or None; lists and dicts of them.
        source_format: The format to write it in.
        old: What it takes the place of, as it is written.
    """
    return _WRITERS[source_format](value, old)


def key_literal(key: str, source_format: SourceFormat, old: str = "") -> str | None:
    """A key as text, in place of the `old` one as it is written."""
    if source_format is SourceFormat.TOML and _TOML_BARE_KEY.fullmatch(key):
        return f"{old[0]}{key}{old[0]}" if old[:1] in ("'", '"') else key
    if source_format is SourceFormat.SHELL:
        return key if _SHELL_NAME.fullmatch(key) else None
    return literal(key, source_format, old)


def pair_literal(key: str, separator: str, value: object, source_format: SourceFormat) -> str | None:
    """A key and its value as text, or None where one of them cannot be written."""
    written_key, written = key_literal(key, source_format), literal(value, source_format)
    return None if written_key is None or written is None else f"{written_key}{separator}{written}"


def _yaml(value: object, old: str) -> str | None:
    if isinstance(value, str):
        return _yaml_text(value, old)
    if isinstance(value, float):
        return _yaml_float(value)
    return _collected(value, _yaml, "{{{}}}", "{}: {}", lambda key: _yaml_text(key, ""))


def _yaml_text(text: str, old: str) -> str:
    if old[:1] == "'" and not _CONTROL.search(text):
        return "'" + text.replace("'", "''") + "'"
    if old[:1] != '"' and _YAML_PLAIN.fullmatch(text) and text.lower() not in _YAML_WORDS:
        return text
    return _double_quoted(text)


def _yaml_float(value: float) -> str:
    text = repr(value)
    if text in ("inf", "-inf", "nan"):
        return text.replace("inf", ".inf").replace("nan", ".nan")
    # YAML 1.1 takes 1e-05 for text: it wants a point.
    return text if "." in text else text.replace("e", ".0e")


def _json(value: object, old: str) -> str:
    return _JSON_CANNOT.sub("\ufffd", json.dumps(value, ensure_ascii=False))


def _toml(value: object, old: str) -> str | None:
    if value is None:
        return None
    if isinstance(value, str):
        if old[:1] == "'" and old[:3] != "'''" and "'" not in value and not _CONTROL.search(value):
            return f"'{value}'"
        return _double_quoted(value)
    if isinstance(value, float):
        return repr(value)
    return _collected(value, _toml, "{{{}}}", "{} = {}", lambda key: key_literal(key, SourceFormat.TOML) or "")


def _shell(value: object, old: str) -> str | None:
    if isinstance(value, list | tuple):
        words = [_shell(item, "") for item in value]
        return " ".join(word for word in words if word) if words and all(words) else None
    if value is None or isinstance(value, Mapping):
        return None
    text = _simple(value) if not isinstance(value, str) else value
    if _SHELL_WORD.fullmatch(text):
        return f"{old[0]}{text}{old[0]}" if old[:1] in ("'", '"') else text
    if old[:1] in ("'", '"') and not _CONTROL.search(text):  # only there it is known that quotes are quotes
        return "'" + text.replace("'", "'\\''") + "'"
    return None


_WRITERS: dict[SourceFormat, Callable[[object, str], str | None]] = {
    SourceFormat.YAML: _yaml,
    SourceFormat.JSON: _json,
    SourceFormat.TOML: _toml,
    SourceFormat.SHELL: _shell,
}


def _collected(
    value: object, write: Callable[[object, str], str | None], braces: str, pair: str, write_key: Callable[[str], str]
) -> str | None:
    """A list or dict in brackets and braces; anything else as such."""
    if isinstance(value, Mapping):
        pairs = [(write_key(str(key)), write(item, "")) for key, item in value.items()]
        if any(text is None for _, text in pairs):
            return None
        return braces.format(", ".join(pair.format(key, text) for key, text in pairs))
    if isinstance(value, list | tuple):
        items = [write(item, "") for item in value]
        return None if None in items else f"[{', '.join(item for item in items if item is not None)}]"
    return _simple(value)


def _simple(value: object) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _double_quoted(text: str) -> str:
    """Text in double quotes as JSON writes it, which YAML and TOML read too, with what does not print escaped."""
    return _UNPRINTABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", _json(text, ""))
