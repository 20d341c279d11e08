"""What tests of dialects ask of a config's text."""

from planner.configs.config import Config
from planner.configs.facts import Facts
from planner.configs.tree import SourceFormat
from planner.linting.engine import Options, configs_of
from planner.linting.sources import parse


def read(text: str, source_format: SourceFormat = SourceFormat.YAML) -> Config | None:
    """The config of a text; None when no dialect has it."""
    configs = configs_of(parse(text, f"config.{source_format}", source_format), Options())
    return configs[0] if configs else None


def dialect_of(text: str, source_format: SourceFormat = SourceFormat.YAML) -> str | None:
    """The dialect that a text is recognised as."""
    config = read(text, source_format)
    return None if config is None else config.dialect.name


def facts_of(text: str, source_format: SourceFormat = SourceFormat.YAML) -> Facts:
    """The facts of a text that some dialect has."""
    config = read(text, source_format)
    assert config is not None
    return config.facts


def values(facts: Facts, *names: str) -> dict[str, object]:
    """The values of these facts; None for what is not known."""
    return {name: None if (fact := getattr(facts, name)) is None else fact.value for name in names}
