"""From a config to training facts: one module per dialect, named as it, with the function `read`.

Values that a fact takes over as they are, and defaults, come from the dialect's schema (``x-fact``) through
`simple_facts`; a module adds what needs a decision.
"""

from collections.abc import Iterable
from importlib import import_module
from typing import Any, get_args

from planner.configs.config import Config
from planner.configs.facts import Fact, Facts


def read_facts(config: Config) -> Facts:
    """What the config asks for."""
    reader = import_module(f"planner.linting.dialects.{config.dialect.name}")
    facts: Facts = reader.read(config)
    return facts


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
