"""Which keys of a config its framework does not read, and which it knows by another name now.

Several rules tell these apart by what follows from them; how they are found is one thing, and stands here.
"""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from planner.configs.config import Config, Setting
from planner.configs.dialect import UnknownKeys, Version, parse_version
from planner.records import record, replace

_LONG_NAME = 8  # characters from which on one wrong character cannot make another word
_MOST_COMPARED = 200  # unknown keys of one config: more are no slips, and to compare them takes seconds
_LIKENESS = 0.8  # of difflib, from which on a name is offered as what may have been meant
# Keys that people add for themselves: anchors of YAML, notes; and our own marks in trees of shell scripts.
_PRIVATE_PREFIXES = ("x-", "_", ".", "$", "//", "#")


@record
class UnreadKey:
    """A key that the framework does not read in the release that is checked against.

    Attributes:
        setting: The key.
        fate: What the framework does with it: `DROPPED` or `REJECTED`.
        removed_in: The release that ceased to read it, if one did.
        added_in: The release that reads it first, if a later one does.
        use: The dotted key that took its place, if one did.
        same: Whether that key takes the same values.
        note: What else is known about it.
        near: Known keys that it may be a misspelling of, the likeliest first.
        is_certain: Whether it can only be a misspelling of the first of these.
        elsewhere: A dotted key of that name in another part of the config, if there is one.
    """

    setting: Setting
    fate: UnknownKeys
    removed_in: str = ""
    added_in: str = ""
    use: str = ""
    same: bool = False
    note: str = ""
    near: tuple[str, ...] = ()
    is_certain: bool = False
    elsewhere: str = ""


@lru_cache(maxsize=8)  # several rules ask about one config after the other
def unread_keys(config: Config) -> tuple[UnreadKey, ...]:
    """The keys of a config that its framework does not read, in the order of the file."""
    return tuple(_unread(config))


def _unread(config: Config) -> Iterator[UnreadKey]:
    if config.first(*config.dialect.extended_by) is not None:
        return
    others_may_read = is_extended(config)
    unknown = 0
    for setting in config.settings():
        outer, _, name = setting.key.rpartition(".")
        around = config.dialect.key_schema(outer) if outer else config.dialect.schema
        if around is None or "properties" not in around or name.startswith(_PRIVATE_PREFIXES):
            continue
        schema = around["properties"].get(config.dialect.known_name(name))
        if schema is not None and is_read(config, schema):
            continue
        fate = UnknownKeys(around.get("x-unknown-keys", config.dialect.unknown_keys))
        if not outer and others_may_read:
            fate = UnknownKeys.UNKNOWN
        if schema is not None and schema.get("x-refused"):
            fate = UnknownKeys.REJECTED
        if fate is UnknownKeys.UNKNOWN:
            continue
        if schema is not None:
            key = _lapsed_key(config, setting, fate, schema)
        elif (unknown := unknown + 1) > _MOST_COMPARED:
            key = UnreadKey(setting=setting, fate=fate)
        else:
            key = _unknown_key(config, setting, name, fate, around["properties"])
        if fate is not UnknownKeys.OPEN:
            yield key
        elif key.is_certain if schema is None else setting.value not in (None, False):  # which ask for nothing
            yield replace(key, fate=UnknownKeys.DROPPED)


def is_extended(config: Config) -> bool:
    """Whether the config sets something, such as a plugin, that may read keys which are not known here."""
    for name, schema in config.dialect.schema["properties"].items():
        if "x-extends" not in schema or (setting := config.get(name)) is None or setting.value is None:
            continue
        values = setting.value if isinstance(setting.value, list) else [setting.value]
        if not {str(value) for value in values} <= set(schema["x-extends"]):
            return True
    return False


def is_read(config: Config, schema: Mapping[str, Any]) -> bool:
    """Whether a key is read in the release that is checked against."""
    release = release_of(config, schema)
    added, removed = schema.get("x-added"), schema.get("x-removed")
    return not (added and release < parse_version(added)) and not (removed and release >= parse_version(removed))


def release_of(config: Config, schema: Mapping[str, Any]) -> Version:
    """The release that a key's own framework is checked against."""
    return config.versions[schema.get("x-of", config.dialect.name)]


def is_surely_of(config: Config, framework: str, release: str) -> bool:
    """Whether a run surely has this release of a dialect's framework or a later one.

    It has where the release that is checked against was stated and is so late, or where the config has a key that came
    with such a release. Of any other config, which may be years old, nobody knows.
    """
    least = parse_version(release)
    if framework in config.stated:
        return config.versions[framework] >= least
    schemas = (config.dialect.key_schema(setting.key) or {} for setting in config.settings())
    return any(
        schema.get("x-of", config.dialect.name) == framework and parse_version(schema.get("x-added", "")) >= least
        for schema in schemas
    )


def _lapsed_key(config: Config, setting: Setting, fate: UnknownKeys, schema: Mapping[str, Any]) -> UnreadKey:
    """A key that another release reads."""
    removed: str = schema.get("x-removed", "")
    is_gone = bool(removed) and release_of(config, schema) >= parse_version(removed)
    return UnreadKey(
        setting=setting,
        fate=fate,
        removed_in=removed if is_gone else "",
        added_in="" if is_gone else schema["x-added"],
        use=schema.get("x-use", ""),
        same=schema.get("x-same", False),
        note=schema.get("x-note", ""),
    )


def _unknown_key(config: Config, setting: Setting, name: str, fate: UnknownKeys, known: Mapping[str, Any]) -> UnreadKey:
    """A key that no release reads, with those that may have been meant."""
    from difflib import get_close_matches  # only where something is wrong

    written = config.dialect.known_name(name)
    readable = [other for other in known if _may_be_like(written, other) and is_read(config, known[other])]
    near = get_close_matches(written, readable, n=3, cutoff=_LIKENESS) if readable else []
    typos = [other for other in near if is_typo(written, other)]
    outer = setting.key.rpartition(".")[0]
    is_free = not near or config.get(f"{outer}.{near[0]}" if outer else near[0]) is None
    elsewhere = (
        ""
        if near or not known
        else next((key for key, _ in config.dialect.known_keys() if key.endswith(f".{name}")), "")
    )
    return UnreadKey(
        setting=setting,
        fate=fate,
        near=(*typos, *(other for other in near if other not in typos)),
        is_certain=len(typos) == 1 and is_free and len(name) >= _LONG_NAME,
        elsewhere=elsewhere,
    )


def _may_be_like(written: str, other: str) -> bool:
    """Whether difflib could find two names alike: letters that only one of them has are in no common part.

    It spares difflib, which takes a hundred times longer, most of the hundreds of names that a framework has.
    """
    needed = _LIKENESS * (len(written) + len(other)) / 2
    if min(len(written), len(other)) < needed:
        return False
    letters, others = _letters(written), _letters(other)
    shared = min(len(written) - len(letters - others), len(other) - len(others - letters))
    return shared >= needed


@lru_cache(maxsize=10_000)
def _letters(name: str) -> frozenset[str]:
    return frozenset(name)


def is_typo(written: str, meant: str) -> bool:
    """Whether one slip of the hand makes one of the other: a character more, less or other, or two swapped."""
    if len(written) > len(meant):
        written, meant = meant, written
    if len(meant) - len(written) > 1 or written == meant:
        return False
    first = next((i for i, (a, b) in enumerate(zip(written, meant, strict=False)) if a != b), len(written))
    if len(written) < len(meant):
        return written[first:] == meant[first + 1 :]
    swapped = meant[first : first + 2][::-1] + meant[first + 2 :]
    return written[first + 1 :] == meant[first + 1 :] or written[first:] == swapped
