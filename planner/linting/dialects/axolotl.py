"""What an axolotl config asks for.

Source: axolotl 0.19.0, utils/schemas/*.py, utils/config/__init__.py, loaders/model.py, core/builders/base.py.
"""

from collections.abc import Iterator
from typing import Any

from planner.configs.config import Config, Setting
from planner.configs.facts import ALL_LINEAR, Attention, Checkpointing, Fact, Facts, Loss, Sharding
from planner.linting.dialects import simple_facts

# The flags that attn_implementation replaced, in the order in which axolotl looks for one that is on.
_ATTENTION_BY_FLAG = {
    "xformers_attention": Attention.OTHER,
    "sage_attention": Attention.OTHER,
    "flex_attention": Attention.FLEX,
    "flash_attention": Attention.FLASH,
    "sdp_attention": Attention.SDPA,
    "eager_attention": Attention.EAGER,
}
_ATTENTION_BY_NAME = {"eager": Attention.EAGER, "sdpa": Attention.SDPA, "flex_attention": Attention.FLEX}
_SHARDING_BY_WORD = {"full_shard": Sharding.PARAMETERS, "shard_grad_op": Sharding.GRADIENTS}
# Keys of what is trained otherwise than as a language model.
_OTHER_METHODS = ("rl", "reward_model", "process_reward_model")
# The adapters that peft trains as low-rank matrices.
_LORA = ("lora", "qlora")
_LORA_BITS = {("qlora", "load_in_4bit"): 4, ("lora", "load_in_8bit"): 8}


def read(config: Config) -> Facts:
    """The training facts of an axolotl config."""
    facts = simple_facts(config)
    for part in (_batch, _recomputation, _adapter, _precision, _parallelism, _generation):
        facts |= part(config)
    facts["attention"] = attention(config)
    facts["loss"] = _loss(config)
    if any(config.value(key) for key in _OTHER_METHODS):
        facts.pop("micro_batch", None)  # a row is a pair of texts, or is generated first
    return Facts(**facts)


def has_plugin(config: Config, class_name: str) -> bool:
    """Whether the config lists a plugin; where it is imported from does not matter."""
    return any(name.rpartition(".")[2] == class_name for name, _ in plugins(config))


def plugins(config: Config) -> Iterator[tuple[str, Setting]]:
    """The plugins that the config lists."""
    listed = config.value("plugins")
    for number, name in enumerate(listed if isinstance(listed, list) else ()):
        setting = config.get(f"plugins.{number}")
        if isinstance(name, str) and setting is not None:
            yield name, setting


def attention(config: Config) -> Fact[Attention] | None:
    """The attention implementation; None where the model decides."""
    setting = config.get("attn_implementation")
    if setting is not None and isinstance(setting.value, str):
        name = setting.value
        flash = Attention.FLASH if "flash" in name else Attention.OTHER
        return Fact(value=_ATTENTION_BY_NAME.get(name, flash), setting=setting)
    for flag, kind in _ATTENTION_BY_FLAG.items():
        if on := config.on(flag):
            return Fact(value=kind, setting=on)
    return None


def _flag(config: Config, key: str, *, default: bool) -> Fact[bool] | None:
    setting = config.get(key)
    if setting is None or setting.value is None:
        return Fact(value=default)
    return Fact(value=setting.value, setting=setting) if isinstance(setting.value, bool) else None


def _batch(config: Config) -> dict[str, Any]:
    packing = _flag(config, "sample_packing", default=False)
    is_packed = packing is not None and packing.value
    evaluation = config.get("eval_batch_size") or config.get("micro_batch_size")
    facts: dict[str, Any] = {
        "packing": packing,
        "padding_free": _flag(config, "batch_flattening", default=False),
        "pad_to_length": _flag(config, "pad_to_sequence_len", default=is_packed),
    }
    if evaluation is not None and type(evaluation.value) is int:
        facts["eval_batch"] = Fact(value=evaluation.value, setting=evaluation)
    return facts


def _recomputation(config: Config) -> dict[str, Any]:
    """Checkpointing, and where saved activations go.

    The offloader that true, "legacy" and "disk" stand for turns the model's own checkpointing off, and puts another
    around each block where no adapter is trained: with one, everything that is saved is offloaded.
    """
    setting = config.get("gradient_checkpointing")
    wanted = setting.value if setting is not None else False
    offloading = config.get("activation_offloading")
    offload = offloading.value if offloading is not None else False
    if wanted in ("offload", "offload_disk"):
        offload, offloading = True, setting
    if wanted not in (True, False, None, "offload", "offload_disk"):
        return {}
    is_replaced = bool(offload) and offload != "hidden_states" and config.value("adapter") is not None
    kind = Checkpointing.NONE if not wanted or is_replaced else Checkpointing.FULL
    if kind is Checkpointing.FULL and config.value("selective_checkpointing"):
        kind = Checkpointing.SELECTIVE
    fsdp = config.first("fsdp_config.activation_checkpointing", "fsdp_config.fsdp_activation_checkpointing")
    if fsdp is not None and fsdp.value is True:
        kind, setting = Checkpointing.FULL, fsdp
    facts: dict[str, Any] = {
        "checkpointing": Fact(value=kind, setting=setting),
        "activation_offload": Fact(value=bool(offload), setting=offloading),
    }
    reentrant = config.get("gradient_checkpointing_kwargs.use_reentrant")
    if reentrant is not None and isinstance(reentrant.value, bool):
        facts["reentrant"] = Fact(value=reentrant.value, setting=reentrant)
    return facts


def _adapter(config: Config) -> dict[str, Any]:
    adapter = config.get("adapter")
    name = adapter.value if adapter is not None else None
    if name is None:
        return {"lora": Fact(value=False, setting=adapter)}
    if name not in _LORA:
        return {}
    facts: dict[str, Any] = {"lora": Fact(value=True, setting=adapter)}
    for (kind, key), bits in _LORA_BITS.items():
        if kind == name and (on := config.on(key)):
            facts["quantization_bits"] = Fact(value=bits, setting=on)
    targets = config.on("lora_target_linear") or config.get("lora_target_modules")
    if targets is not None and targets.value is True:
        facts["lora_targets"] = Fact(value=(ALL_LINEAR,), setting=targets)
    elif targets is not None and isinstance(targets.value, list):
        facts["lora_targets"] = Fact(value=tuple(str(target) for target in targets.value), setting=targets)
    return facts


def _precision(config: Config) -> dict[str, Any]:
    """The dtypes. bf16 takes precedence; "auto", which is its default, leaves them to the device."""
    bf16 = config.get("bf16")
    is_auto = config.value("bf16") == "auto"
    facts: dict[str, Any] = {"compile": _flag(config, "torch_compile", default=False)}
    for key, dtype in (("bf16", "bfloat16"), ("bfloat16", "bfloat16"), ("fp16", "float16"), ("float16", "float16")):
        if on := config.on(key):
            if dtype == "float16" and is_auto and bf16 is not None:
                continue
            facts["compute_dtype"] = Fact(value=dtype, setting=on)
            break
    is_wrapped = any(config.value(key) is not None for key in ("fsdp", "fsdp_config", "deepspeed"))
    is_quantized = config.on("load_in_4bit") or config.on("load_in_8bit")
    if config.on("bf16") and not is_wrapped and not is_quantized and config.value("adapter") in (None, "lora"):
        # The weights are loaded in the dtype of the computation, and nothing makes float32 ones of them.
        facts["parameter_dtype"] = facts["compute_dtype"]
    return facts


def _loss(config: Config) -> Fact[Loss] | None:
    """How the loss is computed; None where another than the language model's is, or logits are cast piece by piece."""
    if any(config.value(key) for key in (*_OTHER_METHODS, "chunked_cross_entropy")):
        return None
    cut = config.get("cut_cross_entropy")
    if has_plugin(config, "CutCrossEntropyPlugin") and (cut is None or cut.value):
        return Fact(value=Loss.FUSED, setting=cut or config.get("plugins"))
    liger = config.on("liger_fused_linear_cross_entropy")
    if liger is not None and has_plugin(config, "LigerPlugin"):
        return Fact(value=Loss.FUSED, setting=liger)
    return Fact(value=Loss.FULL)


def _parallelism(config: Config) -> dict[str, Any]:
    fsdp = config.get("fsdp_config") or config.get("fsdp")
    degree = config.get("dp_shard_size")
    facts: dict[str, Any] = {}
    if degree is not None and type(degree.value) is int:
        facts["data_parallel"] = Fact(value=degree.value, setting=degree)
    if fsdp is None or not fsdp.value:
        if config.value("deepspeed") is None:
            facts["sharding"] = Fact(value=Sharding.NONE)
        return facts
    facts["sharding"] = _fsdp_sharding(config, fsdp)
    offload = config.first("fsdp_config.offload_params", "fsdp_config.fsdp_offload_params")
    if offload is None or isinstance(offload.value, bool):
        # Parameters that lie in host memory have their gradients and optimizer state there.
        fact = Fact(value=offload is not None and offload.value is True, setting=offload)
        facts |= {"parameter_offload": fact, "optimizer_offload": fact}
    return facts


def _fsdp_sharding(config: Config, fsdp: Setting) -> Fact[Sharding]:
    reshard = config.first("fsdp_config.reshard_after_forward", "fsdp_config.fsdp_reshard_after_forward")
    if reshard is not None and reshard.value is False:
        return Fact(value=Sharding.GRADIENTS, setting=reshard)
    listed = config.value("fsdp")
    words = [word for word in map(str, listed) if word in _SHARDING_BY_WORD] if isinstance(listed, list) else []
    return Fact(value=_SHARDING_BY_WORD[words[0]] if words else Sharding.PARAMETERS, setting=fsdp)


def _generation(config: Config) -> dict[str, Any]:
    """The inference engine that reinforcement learning has beside the trainer."""
    fraction = config.get("vllm.gpu_memory_utilization")
    longest = config.get("vllm.max_model_len")
    facts: dict[str, Any] = {}
    if fraction is not None and isinstance(fraction.value, float):
        facts["kv_memory_fraction"] = Fact(value=fraction.value, setting=fraction)
    if longest is not None and type(longest.value) is int:
        facts["max_context"] = Fact(value=longest.value, setting=longest)
    return facts
