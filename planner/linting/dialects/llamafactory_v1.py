"""What a config of LLaMA-Factory's new trainer, v1, asks for.

Source: llamafactory 0.9.5, v1/config/*.py, v1/core/{base_trainer,model_engine}.py, v1/plugins/trainer_plugins.
"""

from typing import Any

from planner.configs.config import Config
from planner.configs.facts import Attention, Checkpointing, Fact, Facts, Loss, Sharding
from planner.linting.dialects import simple_facts

_ATTENTION = {"eager": Attention.EAGER, "sdpa": Attention.SDPA, "flash_attention_2": Attention.FLASH}
_PADDING_FREE = ("padding_free", "dynamic_padding_free")


def read(config: Config) -> Facts:
    """The training facts of a v1 config."""
    facts = simple_facts(config)
    facts |= _sharding(config)
    checkpointing = config.get("enable_activation_checkpointing")
    is_on = config.value("enable_activation_checkpointing")
    if isinstance(is_on, bool):
        kind = Checkpointing.FULL if is_on else Checkpointing.NONE
        facts["checkpointing"] = Fact(value=kind, setting=checkpointing)
        if is_on:
            facts["reentrant"] = Fact(value=False)
    attention = config.value("flash_attn")
    if isinstance(attention, str) and attention in _ATTENTION:
        facts["attention"] = Fact(value=_ATTENTION[attention], setting=config.get("flash_attn"))
    strategy = config.value("batching_strategy")
    facts["padding_free"] = Fact(value=strategy in _PADDING_FREE, setting=config.get("batching_strategy"))
    peft = config.get("peft_config.name")
    if config.value("peft_config") is None or (peft is not None and isinstance(peft.value, str)):
        facts["lora"] = Fact(value=peft is not None and peft.value == "lora", setting=peft)
    facts["loss"] = Fact(value=Loss.FULL)  # its kernels are applied such that the trainer has the logits
    if config.value("bf16") is True:
        facts["compute_dtype"] = Fact(value="bfloat16", setting=config.get("bf16"))
    return Facts(**facts)


def _sharding(config: Config) -> dict[str, Any]:
    name, offload = config.get("dist_config.name"), config.get("dist_config.offload_params")
    if config.value("dist_config") is None:
        return {"sharding": Fact(value=Sharding.NONE)}
    if name is None or name.value != "fsdp2":
        return {}
    reshard = config.get("dist_config.reshard_after_forward")
    keeps = reshard is not None and reshard.value is False
    facts: dict[str, Any] = {
        "sharding": Fact(value=Sharding.GRADIENTS if keeps else Sharding.PARAMETERS, setting=reshard if keeps else name)
    }
    if offload is None or isinstance(offload.value, bool):
        fact = Fact(value=offload is not None and offload.value is True, setting=offload)
        facts |= {"parameter_offload": fact, "optimizer_offload": fact}
    return facts
