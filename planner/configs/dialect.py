"""What a framework's keys are, as data: ``schemas/dialects/<name>.schema.json``.

Each file is a JSON Schema (editors can use it), with these keywords besides:

- at the root, ``x-dialect``: ``framework`` (its name for people), ``version`` (the release that the keys are of),
  ``source`` (files that were read), ``unknown-keys``: what the framework does with a key that it does not know, one of
  "dropped" (silently), "rejected" (it fails), "open" (dropped unless it is of people's own code: only what can but be a
  misspelling is told, and what no release reads any more) and "unknown" (some code may read it: nothing is said),
  ``validates-types`` (whether it refuses text that is no number where a number belongs), ``dashes`` (whether a-b and
  a_b are the same key), ``extended-by`` (keys that name code which may add keys of its own), ``part-of`` (for the
  keys of a part that may have a file of its own, the dialect that it is a part of), and ``include``: other dialects
  whose keys hold here too, with the release this framework uses, such as {"transformers": "5.8.0"}; ``root``: the key
  below which the settings stand in YAML, where that is not the file's root (dashes before the names there are not part
  of them);
- at a key whose value names a config file, ``x-link``: the dialect of that file, such as "deepspeed";
- at an object, ``x-unknown-keys``: as ``unknown-keys``, for the keys below it;
- at a key, ``enum`` or ``type`` as JSON Schema has them (an enum only where the framework refuses other values);
  ``x-fact``: the field of `planner.configs.facts.Facts` that the value is, without any conversion;
  ``x-added``, ``x-deprecated`` and ``x-removed``: the releases in which it appeared, was replaced, and ceased to be
  read; ``x-use``: the dotted key to use instead; ``x-same``: whether that key takes the same values with the same
  meaning; ``x-note``: a sentence for people about what happens instead; ``x-refused``: whether the key is refused once
  it is removed, where other unknown keys are not; ``x-refused-since``: the release from which a key is refused where it
  is on or set to anything, and else taken; ``x-plugin``: the plugin without which the key is not known; ``x-extends``:
  at a list of plugins, those whose keys the schema has, so that with any other, unknown keys may be read; at another
  key, an empty list: while the key is set, they may be read; ``x-needs``: the switch without which the key has no
  effect, as a dotted key or as "key=value"; ``x-off``: at that switch, what happens while it is off, as half a
  sentence.
"""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from functools import cache, lru_cache
from typing import Any

from planner.records import record
from planner.schemas import load_schema


class UnknownKeys(StrEnum):
    """What a framework does with a key that it does not know."""

    DROPPED = "dropped"
    REJECTED = "rejected"
    OPEN = "open"
    UNKNOWN = "unknown"


Version = tuple[int, ...]


@record(eq=False)
class Dialect:
    """The keys of one framework's config files.

    Attributes:
        name: Such as "axolotl".
        framework: The framework's name for people.
        version: The release that the keys are of.
        unknown_keys: What happens to other keys at the top level.
        dashes: Whether a-b and a_b are the same key; the schema has the latter.
        part_of: The dialect that names configs of this one, and whose releases its own are; None for most.
        validates_types: Whether a value of another type than the schema's is refused.
        root: The key below which the settings stand in YAML; empty for the file's own root.
        extended_by: Keys that name code which may add keys of its own, anywhere.
        included: Other dialects whose keys hold here too, and the release of each that this framework uses.
        schema: The JSON Schema, with included dialects' keys merged into it; each of those has ``x-of``, the dialect it
            is from, whose releases its ``x-added``, ``x-deprecated`` and ``x-removed`` mean.
    """

    name: str
    framework: str
    version: str
    unknown_keys: UnknownKeys
    dashes: bool
    part_of: str | None
    validates_types: bool
    root: str
    extended_by: tuple[str, ...]
    included: Mapping[str, Version]
    schema: Mapping[str, Any]

    def key_schema(self, key: str) -> Mapping[str, Any] | None:
        """What is known of a dotted key, or None."""
        return _key_schema(self, key)

    def known_name(self, name: str) -> str:
        """The name as the schema has it: with underscores where the framework takes both a-b and a_b."""
        return name.replace("-", "_") if self.dashes else name

    def framework_of(self, schema: Mapping[str, Any]) -> str:
        """The framework, for people, that a key's releases are of: an included dialect's for its keys."""
        return load_dialect(schema["x-of"]).framework if "x-of" in schema else self.framework

    def known_keys(self) -> tuple[tuple[str, Mapping[str, Any]], ...]:
        """Every key with its dotted name, outer before inner."""
        return _known_keys(self)


@lru_cache(maxsize=10_000)  # files of one kind have the same keys
def _key_schema(dialect: Dialect, key: str) -> Mapping[str, Any] | None:
    schema: Mapping[str, Any] | None = dialect.schema
    for part in key.split("."):
        if schema is None:
            return None
        known = schema.get("properties", {}).get(dialect.known_name(part))
        schema = schema.get("items") if known is None and part.isdecimal() else known
    return schema


@cache
def _known_keys(dialect: Dialect) -> tuple[tuple[str, Mapping[str, Any]], ...]:
    return tuple(_keys(dialect.schema, ""))


def _keys(schema: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for name, below in schema.get("properties", {}).items():
        yield prefix + name, below
        yield from _keys(below, f"{prefix}{name}.")


@cache
def load_dialect(name: str) -> Dialect:
    """The dialect of that name, which comes with the planner."""
    schema = load_schema(f"dialects/{name}")
    about = schema["x-dialect"]
    properties: dict[str, Any] = {}
    included: dict[str, Version] = {name: parse_version(version) for name, version in about.get("include", {}).items()}
    for other in included:
        own = load_dialect(other).schema["properties"]
        properties.update({key: {**below, "x-of": below.get("x-of", other)} for key, below in own.items()})
    properties.update(schema["properties"])
    return Dialect(
        name=name,
        framework=about["framework"],
        version=about["version"],
        unknown_keys=UnknownKeys(about["unknown-keys"]),
        dashes=about.get("dashes", False),
        part_of=about.get("part-of"),
        validates_types=about.get("validates-types", False),
        root=about.get("root", ""),
        extended_by=tuple(about.get("extended-by", ())),
        included=included,
        schema={**schema, "properties": properties},
    )


@cache
def parse_version(text: str) -> Version:
    """The numbers of a release, such as (5, 14, 1): what follows them, such as "rc1", is left out.

    There are three at least, for 5.14 is 5.14.0; none where the text does not begin with a number.
    """
    numbers: list[int] = []
    for part in text.lstrip("v").split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
    missing = _LEAST_NUMBERS - len(numbers) if numbers else 0
    return (*numbers, *[0] * missing)


_LEAST_NUMBERS = 3
