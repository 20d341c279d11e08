"""What overrides of a Megatron-Bridge recipe ask for: what they leave out, the recipe says."""

from planner.configs.config import Config
from planner.configs.facts import Facts
from planner.configs.megatron import cores
from planner.linting.dialects.megatron import core_facts

ENVIRONMENT_KEYS = ("env_vars",)


def read(config: Config) -> Facts:
    """The training facts of the overrides."""
    (core,) = cores(config)
    return Facts(**core_facts(core))
