"""What an SGLang server is asked for."""

from planner.configs.config import Config
from planner.configs.facts import Facts
from planner.linting.dialects import simple_facts


def read(config: Config) -> Facts:
    """The facts of the server."""
    return Facts(**simple_facts(config))
