"""Well-known models as data: a transformers class and the config keys that give it its published size.

Adding one is adding a file: ``<name>.yaml`` with the keys transformers, config, source and, where the hub has it, hub.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.errors import SpecError
from planner.validation import did_you_mean
from planner.yaml_source import load_yaml

_DIRECTORY = Path(__file__).parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A model that comes with the planner.

    Attributes:
        name: Such as "llama-3-8b".
        transformers: The transformers class, such as "LlamaForCausalLM".
        config: Keyword arguments of that class's config.
        hub: Names of models of these sizes on the Hugging Face hub.
        source: Where the config values come from.
    """

    name: str
    transformers: str
    config: Mapping[str, Any]
    hub: tuple[str, ...]
    source: str


def preset_names() -> tuple[str, ...]:
    """The names of all presets, sorted."""
    return tuple(sorted(path.stem for path in _DIRECTORY.glob("*.yaml")))


def load_preset(name: str) -> Preset:
    """The preset of that name.

    Raises:
        SpecError: There is no such preset.
    """
    if name not in preset_names():
        hint = did_you_mean(name, preset_names(), plural="known presets")
        raise SpecError(f"unknown preset {name!r}", path="preset", hint=hint)
    data: dict[str, Any] = load_yaml(_DIRECTORY / f"{name}.yaml").data  # type: ignore[assignment]  # our file
    return Preset(
        name=name,
        transformers=data["transformers"],
        config=data["config"],
        hub=tuple(data.get("hub", ())),
        source=data["source"],
    )
