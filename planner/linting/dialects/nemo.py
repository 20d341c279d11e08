"""What a config of NeMo 1 asks for: what it leaves out may come from the checkpoint that it restores."""

from planner.configs.config import Config
from planner.configs.facts import Facts
from planner.configs.megatron import cores
from planner.linting.dialects.megatron import core_facts


def read(config: Config) -> Facts:
    """The training facts of the config."""
    (core,) = cores(config)
    return Facts(**core_facts(core))
