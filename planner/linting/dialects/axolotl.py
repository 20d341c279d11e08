"""What an axolotl config asks for."""

from planner.configs.config import Config
from planner.configs.facts import Checkpointing, Fact, Facts
from planner.linting.dialects import simple_facts


def read(config: Config) -> Facts:
    """The training facts of an axolotl config."""
    facts = simple_facts(config)
    checkpointing = config.get("gradient_checkpointing")
    if checkpointing is None or isinstance(checkpointing.value, bool):
        is_on = checkpointing is not None and checkpointing.value is True
        facts["checkpointing"] = Fact(value=Checkpointing.FULL if is_on else Checkpointing.NONE, setting=checkpointing)
    return Facts(**facts)
