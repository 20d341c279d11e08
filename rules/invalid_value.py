"""A value that the framework does not take for its key."""

from collections.abc import Iterator, Mapping
from typing import Any

from planner.configs.config import Config, Setting, report
from planner.configs.edits import set_value
from planner.configs.keys import is_typo
from planner.configs.tree import Scalar
from planner.diagnostics import Edit, Fix, FixSafety, Report, Rule, Severity, Source

# Text that people write for the program that fills in the config, or that the framework resolves later.
_TEMPLATE_MARKS = ("${", "{{", "{%", "<", "%(", "$")
_BOOL_WORDS = frozenset(("true", "false", "yes", "no", "on", "off", "1", "0", "t", "f", "y", "n"))
_MOST_CHOICES = 12  # that are worth listing


def find(config: Config) -> Iterator[Report]:
    """A report for each value outside of what its key takes."""
    for setting in config.settings():
        node = setting.node
        if not isinstance(node, Scalar) or node.value is None or node.value == "auto":
            continue
        schema = config.dialect.key_schema(setting.key)
        if schema is None or (isinstance(node.value, str) and any(mark in node.value for mark in _TEMPLATE_MARKS)):
            continue
        if "enum" in schema:
            if node.value not in schema["enum"]:
                yield _not_a_choice(config, setting, schema["enum"])
        elif config.dialect.validates_types and isinstance(node.value, str) and not _could_be(node.value, schema):
            wanted = " or ".join(_types(schema))
            yield report(
                setting, f"{setting.key} takes {wanted}, and {config.dialect.framework} refuses {node.value!r}"
            )


def _not_a_choice(config: Config, setting: Setting, choices: list[Any]) -> Report:
    value = str(setting.value)
    words = [choice for choice in choices if isinstance(choice, str)]
    if isinstance(setting.value, bool):
        written = setting.document.text[setting.at_value.start : setting.at_value.end]
        meant = [word for word in words if word.lower() == written.lower()]
        if meant:
            return _read_as_bool(config, setting, written, meant[0])
    folded = [word for word in words if word.lower() == value.lower()]
    meant = folded or [word for word in words if is_typo(value, word)]
    shown = ", ".join(
        "null" if choice is None else str(choice).lower() if isinstance(choice, bool) else str(choice)
        for choice in choices
    )
    fix = None
    if len(meant) == 1:
        fix = Fix(title=f"Write {meant[0]}", safety=FixSafety.SAFE, edits=set_value(setting, meant[0]))
    return report(
        setting,
        f"{config.dialect.framework} does not take {value!r} for {setting.key}",
        help=f"did you mean {meant[0]!r}?" if meant else f"one of {shown}" if len(choices) <= _MOST_CHOICES else "",
        fix=fix,
    )


def _read_as_bool(config: Config, setting: Setting, written: str, meant: str) -> Report:
    """A report on no, yes, on or off without quotes, which YAML 1.1 takes for a truth value."""
    place = setting.at_value
    return report(
        setting,
        f"YAML reads {written} as {str(setting.value).lower()}, which {config.dialect.framework} does not take for "
        f"{setting.key}",
        help=f'write "{meant}", in quotes',
        fix=Fix(
            title=f'Write "{meant}"',
            safety=FixSafety.SAFE,
            edits=(Edit(document=place.document, start=place.start, end=place.end, text=f'"{meant}"'),),
        ),
    )


def _types(schema: Mapping[str, Any]) -> tuple[str, ...]:
    types = schema.get("type", ())
    return (types,) if isinstance(types, str) else tuple(types)


def _could_be(text: str, schema: Mapping[str, Any]) -> bool:
    """Whether text is, or can be read as, what the key takes. What is not known to be refused, could be."""
    types = [name for name in _types(schema) if name != "null"]
    if not types or any(name not in ("integer", "number", "boolean") for name in types):
        return True
    if "boolean" in types and text.lower() in _BOOL_WORDS:
        return True
    try:
        float(text)
    except ValueError:
        return False
    return types != ["boolean"]


RULE = Rule(
    code="KEY007",
    name="invalid-value",
    severity=Severity.ERROR,
    summary="A value that the framework does not take for its key.",
    why="The run ends where the config is read, which on a cluster is after the queue and after the machines are up.",
    instead="One of the values that the key takes.",
    sources=(Source(title="axolotl 067b021", where="src/axolotl/utils/schemas/*.py: fields that are Literal or Enum"),),
    find=find,
    fix=FixSafety.SAFE,
)
