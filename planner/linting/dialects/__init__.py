"""From a config to training facts: one module per dialect, named as it, with the function `read`.

A module whose files set environment variables under some keys names these in `ENVIRONMENT_KEYS`, such as ("ENV_VARS",).

Values that a fact takes over as they are, and defaults, come from the dialect's schema (``x-fact``) through
`simple_facts`; a module adds what needs a decision.
"""

from importlib import import_module
from typing import Any, get_args

from planner.configs.config import Config, Setting
from planner.configs.facts import Fact, Facts
from planner.configs.tree import Entry, Mapping


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
        if outer is not None and isinstance(outer.node, Mapping):
            for name, entry in outer.node.by_key.items():
                variables[name] = Setting(key=f"{key}.{name}", document=config.document, entry=entry)
    return variables


def settings_root(config: Config) -> Mapping:
    """Where the settings of a config stand: its root, or what its dialect names there, without dashes before names."""
    outer = config.get(config.dialect.root) if config.dialect.root else None
    if outer is None or not isinstance(outer.node, Mapping):
        return config.root
    node = outer.node
    return Mapping(node.start, node.end, [_without_dashes(entry, config.document.text) for entry in _all(node)], [])


def _all(node: Mapping) -> list[Entry]:
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
    """The facts that stand in the config as they are, or are defaults in the schema: values of another type are not."""
    facts: dict[str, Any] = {}
    for key, schema in config.dialect.known_keys():
        name = schema.get("x-fact")
        if name is None or (name in facts and facts[name].setting is not None):
            continue
        setting = config.get(key)
        value = setting.value if setting is not None else schema.get("default")
        wanted = _TYPE_BY_FACT[name]
        if isinstance(value, wanted) and (wanted is bool or not isinstance(value, bool)):
            facts[name] = Fact(value=value, setting=setting)
    return facts
