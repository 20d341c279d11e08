"""From a config to training facts: one module per dialect, named as it, with the function `read`.

A module whose files set environment variables under some keys names these in `ENVIRONMENT_KEYS`, such as ("ENV_VARS",).

Values that a fact takes over as they are, and defaults, come from the dialect's schema (``x-fact``) through
`simple_facts`; a module adds what needs a decision.
"""

from collections.abc import Iterable
from functools import cache
from importlib import import_module
from typing import Any, get_args

from planner.configs.config import Config, Setting
from planner.configs.dialect import Dialect
from planner.configs.facts import Fact, Facts
from planner.configs.tree import Entry
from planner.configs.tree import Mapping as MappingNode


def read_facts(config: Config) -> Facts:
    """What the config asks for."""
    reader = import_module(f"planner.linting.dialects.{config.dialect.name}")
    facts: Facts = reader.read(config)
    return facts


def read_environment(config: Config) -> dict[str, Setting]:
    """The environment variables that a config sets, by name: in a shell script those of its command."""
    reader = import_module(f"planner.linting.dialects.{config.dialect.name}")
    keys: tuple[str, ...] = getattr(reader, "ENVIRONMENT_KEYS", ())
    variables: dict[str, Setting] = {}
    for key in ("$env", *keys):
        outer = config.get(key)
        if outer is not None and isinstance(outer.node, MappingNode):
            for name, entry in outer.node.by_key.items():
                variables[name] = Setting(key=f"{key}.{name}", document=config.document, entry=entry)
    return variables


def settings_root(config: Config) -> MappingNode:
    """Where the settings of a config stand: its root, or what its dialect names there, without dashes before names."""
    outer = config.get(config.dialect.root) if config.dialect.root else None
    if outer is None or not isinstance(outer.node, MappingNode):
        return config.root
    node = outer.node
    return MappingNode(node.start, node.end, [_without_dashes(entry, config.document.text) for entry in _all(node)], [])


def _all(node: MappingNode) -> list[Entry]:
    """The entries as written, and those that merge keys bring."""
    own = {entry.key for entry in node.entries}
    return [*(entry for key, entry in node.by_key.items() if key not in own), *node.entries]


def _without_dashes(entry: Entry, text: str) -> Entry:
    name = entry.key.lstrip("-")
    start = text.find(name, entry.key_start, entry.key_end)
    if start < 0:  # written with escapes
        return Entry(name, entry.key_start, entry.key_end, entry.value)
    return Entry(name, start, start + len(name), entry.value)


# What type a plain fact's value has, from the annotation: Fact[int] | None.
_TYPE_BY_FACT = {name: get_args(get_args(annotation)[0])[0] for name, annotation in Facts.__annotations__.items()}


def simple_facts(config: Config) -> dict[str, Any]:
    """The facts that stand in the config as they are, or are defaults in the schema.

    Values of another type are not, nor numbers below 1 where something is counted: they stand for "none" or "all".
    """
    facts: dict[str, Any] = {}
    for key, name, schema in _fact_keys(config.dialect):
        if name in facts and facts[name].setting is not None:
            continue
        setting = config.get(key)
        value = setting.value if setting is not None else schema.get("default")
        wanted = _TYPE_BY_FACT[name]
        if wanted is int and (not isinstance(value, int) or value < 1):
            continue
        if isinstance(value, wanted) and (wanted is bool or not isinstance(value, bool)):
            facts[name] = Fact(value=value, setting=setting)
    return facts


@cache
def _fact_keys(dialect: Dialect) -> tuple[tuple[str, str, dict[str, Any]], ...]:
    """The keys whose values are facts, with the facts' names."""
    return tuple((key, schema["x-fact"], dict(schema)) for key, schema in dialect.known_keys() if "x-fact" in schema)


def merged_facts(facts: Facts, linked: Iterable[Config]) -> Facts:
    """The facts of a config with those of the configs that it names, where it does not say otherwise itself.

    What either sets goes before defaults, and the config's own defaults before those of what it names.
    """
    for config in linked:
        other = config.facts
        found = {name: _firm(getattr(facts, name), getattr(other, name)) for name in _TYPE_BY_FACT}
        facts = Facts(**found)
    return facts


def _firm(own: Fact[Any] | None, other: Fact[Any] | None) -> Fact[Any] | None:
    if own is None or (own.setting is None and other is not None and other.setting is not None):
        return other
    return own
