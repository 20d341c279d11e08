"""Checks data against a JSON schema and says what is wrong as one located sentence.

jsonschema finds the problems; the words are ours, because its own are written for the author of the schema.
"""

import difflib
import math
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from planner.errors import LocatedError, SpecError
from planner.schemas import load_schema
from planner.yaml_source import KeyPath, SourcedDocument

if TYPE_CHECKING:
    from jsonschema import ValidationError
    from jsonschema.protocols import Validator

_TYPE_NAMES = {
    "object": "a mapping",
    "array": "a list",
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "null": "null",
}


def check(document: SourcedDocument, schema_name: str, *, error_type: type[LocatedError] = SpecError) -> None:
    """Returns when the document fits the schema.

    Raises:
        LocatedError: Of ``error_type``, for the first problem in the order of the file. What is there and
            wrong comes before what is missing: a misspelt key is both.
    """
    problems = list(_validator(schema_name).iter_errors(cast(Any, document.data)))
    if not problems:
        return

    def order(problem: "ValidationError") -> tuple[bool, int, int]:
        position = document.position(_describe(problem)[0])
        is_missing = problem.validator in ("required", "anyOf")
        return (is_missing, position.line, position.column) if position else (is_missing, 0, 0)

    key_path, message, hint = _describe(min(problems, key=order))
    raise document.error(message, key_path, hint=hint, error_type=error_type)


def found(value: object) -> str:
    """How a message shows a value from a file."""
    match value:
        case None:
            return "nothing"
        case bool():
            return str(value).lower()
        case str():
            return repr(value if len(value) <= 60 else value[:59] + "…")
        case int() if abs(value) >= 10**20:
            return "a number of more than 20 digits"
        case Mapping():
            return "a mapping"
        case list():
            return "a list"
    return str(value)


def did_you_mean(name: str, known: tuple[str, ...], *, plural: str) -> str:
    """A hint: the known name that begins like this one or is closest to it, or else all of them."""
    begin_alike = [candidate for candidate in known if name and candidate.startswith(name)]
    close = begin_alike or difflib.get_close_matches(name, known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"{plural}: {', '.join(known)}"


@cache
def _validator(schema_name: str) -> "Validator":
    # Imported here because jsonschema takes longer to import than a small file takes to check.
    from jsonschema import Draft202012Validator
    from jsonschema.validators import extend

    # JSON Schema counts 1.0 as an integer and NaN as a number; no size or rate of ours is either.
    types = Draft202012Validator.TYPE_CHECKER.redefine_many(
        {
            "integer": lambda _, value: isinstance(value, int) and not isinstance(value, bool),
            "number": lambda _, value: (
                not isinstance(value, bool)
                and (isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)))
            ),
        }
    )
    strict_validator: Any = extend(Draft202012Validator, type_checker=types)  # type: ignore[no-untyped-call]
    return cast("Validator", strict_validator(load_schema(schema_name)))


def _describe(problem: "ValidationError") -> tuple[KeyPath, str, str | None]:
    """The key that is wrong, what is wrong with it, and what to try."""
    key_path: KeyPath = tuple(problem.absolute_path)
    schema: Mapping[str, Any] = problem.schema if isinstance(problem.schema, Mapping) else {}
    value: Any = problem.instance
    limit: Any = problem.validator_value
    match problem.validator:
        case "additionalProperties":
            return _unknown_key(key_path, schema, value)
        case "required":
            missing = next(name for name in limit if name not in value)
            return key_path, f"{missing!r} is missing", schema.get("x-hint")
        case "oneOf" | "anyOf" if isinstance(value, Mapping):
            return _wrong_choice(key_path, problem.validator, limit, value)
        case "enum":
            close = difflib.get_close_matches(str(value), limit, n=1)
            hint = f"did you mean {close[0]!r}?" if close else None
            return key_path, f"expected one of {', '.join(limit)}, found {found(value)}", hint
        case "maximum":
            return key_path, f"expected at most {limit:,}, found {found(value)}", None
        case "minProperties":
            return key_path, "expected at least one entry, found none", None
        case "maxItems":
            return key_path, f"expected at most {limit} entries, found {len(value)}", None
    expected = schema.get("x-expected") or _expected_type(schema.get("type"))
    return key_path, f"expected {expected}, found {found(value)}", None


def _unknown_key(
    key_path: KeyPath, schema: Mapping[str, Any], value: Mapping[str, object]
) -> tuple[KeyPath, str, str | None]:
    known = tuple(schema.get("properties", {}))
    unknown = next(key for key in value if key not in known)
    return (*key_path, unknown), "unknown key", did_you_mean(unknown, known, plural="known keys")


def _wrong_choice(
    key_path: KeyPath, keyword: str, options: list[Mapping[str, Any]], value: Mapping[str, object]
) -> tuple[KeyPath, str, str | None]:
    names = [option["required"][0] for option in options]
    present = [name for name in names if name in value]
    wanted = "exactly one of" if keyword == "oneOf" else "at least one of"
    return key_path, f"expected {wanted} {', '.join(names)}, found {' and '.join(present) or 'none'}", None


def _expected_type(type_name: object) -> str:
    names = type_name if isinstance(type_name, list) else [type_name]
    return " or ".join(_TYPE_NAMES.get(str(name), "another value") for name in names)
