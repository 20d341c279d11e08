"""A training config: the settings of a file of a known dialect, and how a rule reports on them."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import isfinite

from planner.configs.dialect import Dialect, Version
from planner.configs.facts import Facts
from planner.configs.tree import Document, Entry, Mapping, Node, Scalar, SourceFormat, plain
from planner.configs.tree import Sequence as SequenceNode
from planner.diagnostics import Fix, Place, Related, Report
from planner.records import field, record


@record(eq=False)
class Setting:
    """A key of a config, with its value.

    Attributes:
        key: Dotted, such as "fsdp_config.offload_params"; items of lists by number, such as "datasets.0.path".
        document: The file that it stands in.
        entry: Key and value with their places.
    """

    key: str
    document: Document
    entry: Entry

    @property
    def value(self) -> object:
        """The value as plain data: dict, list, text, number, true, false or None."""
        node = self.entry.value
        return node.value if isinstance(node, Scalar) else plain(node)

    @property
    def node(self) -> Node:
        return self.entry.value

    @property
    def at_key(self) -> Place:
        return Place(document=self.document, start=self.entry.key_start, end=self.entry.key_end, key=self.key)

    @property
    def at_value(self) -> Place:
        """The value's place; of a mapping or list, the key's, which is where a reader looks."""
        node = self.entry.value
        if not isinstance(node, Scalar) or node.start == node.end:
            return self.at_key
        return Place(document=self.document, start=node.start, end=node.end, key=self.key)


@record(eq=False)
class Config:
    """A training config.

    Attributes:
        document: The file.
        root: Where the settings of this config begin: the file's root, or a part of it, such as one command in a
            shell script.
        dialect: What the keys are.
        versions: By dialect name, the release to check against.
        stated: The dialects whose release somebody has stated; that of others is the newest one known.
        facts: What it asks for.
        linked: Configs that it names and that could be read, such as a DeepSpeed JSON file, or has inline.
        named_by: For such a config, the key that names it.
        environment: Environment variables that it sets, by name.
        prospect: What the run would need of the device with some facts changed, if model and device are known.
    """

    document: Document
    root: Mapping
    dialect: Dialect
    versions: dict[str, Version]
    stated: frozenset[str] = frozenset()
    facts: Facts = field(default_factory=Facts)
    linked: "tuple[Config, ...]" = ()
    named_by: Setting | None = None
    environment: dict[str, Setting] = field(default_factory=dict)
    prospect: "Callable[[Facts], Prospect | None]" = lambda facts: None

    def get(self, key: str) -> Setting | None:
        """The setting of a dotted key, or None where the file does not have it."""
        node: Node = self.root
        entry: Entry | None = None
        for part in key.split("."):
            if isinstance(node, SequenceNode):
                number = int(part) if part.isdecimal() else -1
                if not 0 <= number < len(node.items):
                    return None
                item = node.items[number]
                entry = Entry(part, item.start, item.end, item)
            elif isinstance(node, Mapping):
                entry = self._entry(node, part)
            else:
                return None
            if entry is None:
                return None
            node = entry.value
        return None if entry is None else Setting(key=key, document=self.document, entry=entry)

    def _entry(self, node: Mapping, key: str) -> Entry | None:
        found = node.by_key.get(key)
        if found is None and self.dialect.dashes:
            found = node.by_key.get(key.replace("_", "-"))
        return found

    def value(self, key: str) -> object:
        """The value of a dotted key; where the file does not have it, the framework's default if known, or None."""
        setting = self.get(key)
        if setting is not None:
            return setting.value
        schema = self.dialect.key_schema(key)
        return None if schema is None else schema.get("default")

    def on(self, key: str) -> Setting | None:
        """The setting of a key that the file itself sets to true."""
        setting = self.get(key)
        return setting if setting is not None and setting.value is True else None

    def number(self, key: str) -> int | float | None:
        """The value of a key, or its default, where that is a finite number."""
        value = self.value(key)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        return value if isinstance(value, float) and isfinite(value) else None

    def first(self, *keys: str) -> Setting | None:
        """The first of these keys that the file has."""
        for key in keys:
            setting = self.get(key)
            if setting is not None:
                return setting
        return None

    def is_merged(self, setting: Setting) -> bool:
        """Whether YAML's << brings a setting from another part of the file, from which other parts may have it too."""
        outer = self.get(setting.key.rpartition(".")[0])
        holder = self.root if outer is None else outer.node
        is_within = holder.start <= setting.entry.key_start < holder.end
        return self.document.format is SourceFormat.YAML and not is_within

    def link(self, dialect: str) -> "Config | None":
        """The config of a dialect that this one names or has inline."""
        return next((config for config in self.linked if config.dialect.name == dialect), None)

    def settings(self) -> tuple[Setting, ...]:
        """Every key that the file has, outer before inner, in its order; a part that aliases share comes once."""
        return _settings(self.root, self.document)

    @property
    def target(self) -> Version:
        """The release of the config's own framework to check against."""
        return self.versions[self.dialect.name]


@lru_cache(maxsize=16)  # several rules ask for those of one config after the other
def _settings(root: Mapping, document: Document) -> tuple[Setting, ...]:
    found: list[Setting] = []
    seen: set[int] = set()
    # No recursion: the depth of a file is its author's choice. What comes first is last on the stack.
    stack = _children(root, "", seen)
    while stack:
        key, entry = stack.pop()
        found.append(Setting(key=key, document=document, entry=entry))
        if not isinstance(entry.value, Scalar):
            stack += _children(entry.value, f"{key}.", seen)
    return tuple(found)


def _children(node: Node, prefix: str, seen: set[int]) -> list[tuple[str, Entry]]:
    """Keys and entries of a mapping or list that was not seen before, the last one first."""
    if id(node) in seen:
        return []
    seen.add(id(node))
    if isinstance(node, Mapping):
        return [(prefix + entry.key, entry) for entry in reversed(node.entries)]
    if isinstance(node, SequenceNode):
        numbered = [(str(number), item) for number, item in enumerate(node.items)]
        return [(prefix + key, Entry(key, item.start, item.end, item)) for key, item in reversed(numbered)]
    return []


@record
class Prospect:
    """What a run would need of a device.

    Attributes:
        verdict: "FITS", "AT RISK" or "OOM", as `planner estimate` has them.
        low_bytes: What it needs at least, with the CUDA context and what the allocator reserves.
        high_bytes: What it may need.
        usable_bytes: What there is.
        phase: When it needs the most, such as "backward".
        device: The device's name.
    """

    verdict: str
    low_bytes: int
    high_bytes: int
    usable_bytes: int
    phase: str
    device: str


def report(
    where: Setting | Place,
    message: str,
    *,
    help: str = "",  # the field's name
    related: Sequence[tuple[Setting | Place | None, str]] = (),
    fix: Fix | None = None,
) -> Report:
    """A report at a setting's value, or at any place.

    Args:
        where: What it is about. For a key whose name is the fault, pass `Setting.at_key`.
        message: What was found and why it matters; no full stop at its end.
        help: What to write instead.
        related: Other settings or places, each with what it has to do with it; None, for a default, is left out.
        fix: How it can be mended; one without edits cannot be applied, and is none.
    """
    return Report(
        place=_place(where),
        message=message,
        help=help,
        related=tuple(Related(place=_place(other), message=text) for other, text in related if other is not None),
        fix=fix if fix is not None and fix.edits else None,
    )


def _place(where: Setting | Place) -> Place:
    return where.at_value if isinstance(where, Setting) else where
