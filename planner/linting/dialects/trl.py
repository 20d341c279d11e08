"""What the arguments of a TRL trainer ask for. A config does not say which trainer it is for."""

from typing import Any

from planner.configs.config import Config
from planner.configs.facts import ALL_LINEAR, Fact, Facts, Loss
from planner.configs.sharding import is_true
from planner.linting.dialects.transformers import attention_of, training_arguments

_FLOAT32_SINCE = (0, 27)  # before, the checkpoint's own dtype was taken. Source: trl/trainer/model_config.py
_BITS_BY_KEY = {"load_in_4bit": 4, "load_in_8bit": 8}


def read(config: Config) -> Facts:
    """The training facts of a TRL config."""
    facts = training_arguments(config)
    if "compute_dtype" not in facts and config.get("bf16") is None:
        # _BaseConfig.__post_init__: bf16 = not fp16 where it is not set
        facts["compute_dtype"] = Fact(value="bfloat16")
    facts.update(attention_of(config.get("attn_implementation")))
    facts.update(_adapters(config))
    length = config.first("max_length", "max_seq_length")
    if length is not None and isinstance(length.value, int):
        facts["sequence_length"] = Fact(value=length.value, setting=length)
    liger = config.get("use_liger_kernel")
    if liger is not None and liger.value is True:
        facts["loss"] = Fact(value=Loss.FUSED, setting=liger)
    return Facts(**facts)


def weights_dtype(config: Config) -> Fact[str] | None:
    """The dtype that the weights are loaded in; None where it is the checkpoint's own, or not known."""
    setting = config.first("dtype", "torch_dtype")
    if setting is None:
        return Fact(value="float32") if config.target >= _FLOAT32_SINCE else None
    value = setting.value
    return Fact(value=value, setting=setting) if isinstance(value, str) and value != "auto" else None


def _adapters(config: Config) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    use_peft = config.get("use_peft")
    if use_peft is None or isinstance(use_peft.value, bool):
        facts["lora"] = Fact(value=use_peft is not None and use_peft.value is True, setting=use_peft)
    for key, bits in _BITS_BY_KEY.items():
        setting = config.get(key)
        if setting is not None and is_true(setting.value):
            facts["quantization_bits"] = Fact(value=bits, setting=setting)
    if "lora" not in facts:
        return facts
    if not facts["lora"].value:
        weights = weights_dtype(config)
        return {**facts, "parameter_dtype": weights} if weights is not None else facts
    rank, targets = config.get("lora_r"), config.get("lora_target_modules")
    if isinstance(config.value("lora_r"), int):
        facts["lora_rank"] = Fact(value=config.value("lora_r"), setting=rank)
    if targets is not None and targets.value == ALL_LINEAR:
        facts["lora_targets"] = Fact(value=(ALL_LINEAR,), setting=targets)
    elif targets is not None and isinstance(targets.value, list):
        facts["lora_targets"] = Fact(value=tuple(str(name) for name in targets.value), setting=targets)
    return facts
