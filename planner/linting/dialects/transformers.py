"""What Hugging Face TrainingArguments ask for; other dialects that include these keys read them from here."""

from typing import Any

from planner.configs.config import Config, Setting
from planner.configs.facts import Attention, Checkpointing, Fact, Facts, Sharding
from planner.configs.sharding import fsdp_setting, fsdp_words, is_true
from planner.linting.dialects import simple_facts

# From this release on, checkpointing is non-reentrant unless asked otherwise. Source: transformers 5.0.0 and 4.57.0,
# modeling_utils.py: gradient_checkpointing_enable.
_NON_REENTRANT_SINCE = (5, 0)
_CHECKPOINTING_KEYS = ("activation_checkpointing", "gradient_checkpointing")


def read(config: Config) -> Facts:
    """The training facts of TrainingArguments."""
    return Facts(**training_arguments(config))


def training_arguments(config: Config) -> dict[str, Any]:
    """The facts that TrainingArguments among the keys of a config say."""
    facts = simple_facts(config)
    facts.update(_checkpointing(config))
    facts.update(_precision(config))
    facts.update(_fsdp(config))
    return facts


def attention_of(setting: Setting | None) -> dict[str, Any]:
    """The fact that a key with one of Transformers' names for an attention implementation says."""
    value = None if setting is None else setting.value
    if not isinstance(value, str):
        return {}
    if value in ("eager", "sdpa"):
        kind = Attention(value)
    elif "flash" in value:  # flash_attention_2, kernels-community/vllm-flash-attn3
        kind = Attention.FLASH
    else:
        kind = Attention.FLEX if value == "flex_attention" else Attention.OTHER
    return {"attention": Fact(value=kind, setting=setting)}


def _checkpointing(config: Config) -> dict[str, Any]:
    setting = next(
        (found for key in _CHECKPOINTING_KEYS if (found := config.get(key)) and found.value is not None), None
    )
    value = config.value(_CHECKPOINTING_KEYS[-1]) if setting is None else setting.value
    if not isinstance(value, bool):
        return {}
    by_fsdp = fsdp_setting(config, "activation_checkpointing")
    if not value and by_fsdp is not None and is_true(by_fsdp.value) and fsdp_words(config):
        return {"checkpointing": Fact(value=Checkpointing.FULL, setting=by_fsdp)}
    facts: dict[str, Any] = {
        "checkpointing": Fact(value=Checkpointing.FULL if value else Checkpointing.NONE, setting=setting)
    }
    reentrant = config.first(*(f"{key}_kwargs.use_reentrant" for key in _CHECKPOINTING_KEYS))
    if value and reentrant is not None and isinstance(reentrant.value, bool):
        facts["reentrant"] = Fact(value=reentrant.value, setting=reentrant)
    elif value and reentrant is None:
        release = config.versions.get("transformers", _NON_REENTRANT_SINCE)
        facts["reentrant"] = Fact(value=release < _NON_REENTRANT_SINCE)
    return facts


def _precision(config: Config) -> dict[str, Any]:
    """What is computed in, where the arguments say it: a launcher's config may say it otherwise."""
    for key, dtype in (("bf16", "bfloat16"), ("fp16", "float16")):
        setting = config.get(key)
        if setting is not None and is_true(setting.value):
            return {"compute_dtype": Fact(value=dtype, setting=setting)}
    return {}


def _fsdp(config: Config) -> dict[str, Any]:
    setting = config.get("fsdp")
    words = fsdp_words(config)
    if not words or "no_shard" in words:
        return {}
    facts: dict[str, Any] = {}
    reshard = fsdp_setting(config, "reshard_after_forward")
    keeps = "shard_grad_op" in words or (reshard is not None and str(reshard.value).lower() == "false")
    facts["sharding"] = Fact(value=Sharding.GRADIENTS if keeps else Sharding.PARAMETERS, setting=setting)
    offload = fsdp_setting(config, "cpu_offload")
    if "offload" in words:
        facts["parameter_offload"] = Fact(value=True, setting=setting)
    elif offload is not None and isinstance(offload.value, bool):
        facts["parameter_offload"] = Fact(value=offload.value, setting=offload)
    return facts
