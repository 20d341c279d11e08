"""What an fsdp_config of Hugging Face TrainingArguments asks for: only they say whether FSDP is on, and read it."""

from planner.configs.config import Config
from planner.configs.facts import Facts


def read(config: Config) -> Facts:
    """No facts: see `planner.linting.dialects.transformers`."""
    return Facts()
