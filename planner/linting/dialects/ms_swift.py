"""What a command of ms-swift asks for: its own training loop, or Megatron's."""

from planner.configs.config import Config
from planner.configs.facts import Attention, Checkpointing, Fact, Facts
from planner.configs.megatron import cores
from planner.linting.dialects import simple_facts
from planner.linting.dialects.megatron import core_facts

ENVIRONMENT_KEYS = ("ENV",)

_ATTENTION = {
    "eager": Attention.EAGER,
    "sdpa": Attention.SDPA,
    "flex_attention": Attention.FLEX,
    **dict.fromkeys(("flash_attn", "flash_attention_2", "flash_attention_3", "flash_attention_4"), Attention.FLASH),
}


def read(config: Config) -> Facts:
    """The facts of a command of ms-swift."""
    for core in cores(config):
        return Facts(**core_facts(core))
    facts = simple_facts(config)
    attention = config.get("attn_impl")
    if attention is not None and str(attention.value) in _ATTENTION:
        facts["attention"] = Fact(value=_ATTENTION[str(attention.value)], setting=attention)
    checkpointing = config.get("gradient_checkpointing")
    is_on = config.value("gradient_checkpointing")
    if isinstance(is_on, bool):
        facts["checkpointing"] = Fact(value=Checkpointing.FULL if is_on else Checkpointing.NONE, setting=checkpointing)
    tuner = config.first("tuner_type", "train_type")
    if tuner is not None and isinstance(tuner.value, str) and "$" not in tuner.value:
        facts["lora"] = Fact(value="lora" in tuner.value, setting=tuner)
    return Facts(**facts)
