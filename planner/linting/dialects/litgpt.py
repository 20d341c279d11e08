"""What a litgpt config asks for.

Finetuning names a checkpoint, pretraining a model. With several devices, finetuning shards parameters and checkpoints
every block, and pretraining shards them and checkpoints nothing; there is no key for either.
"""

from typing import Any, TypeGuard

from planner.configs.config import Config
from planner.configs.facts import Checkpointing, Fact, Facts, Sharding
from planner.linting.dialects import simple_facts

_PRECISIONS = {"bf16": "bfloat16", "16": "float16", "32": "float32"}
# As Llama's linear layers are called; litgpt has the first three in one.
_LORA_TARGETS = {
    "lora_query": ("q_proj",),
    "lora_key": ("k_proj",),
    "lora_value": ("v_proj",),
    "lora_projection": ("o_proj",),
    "lora_mlp": ("gate_proj", "up_proj", "down_proj"),
}
_BITS = {"bnb.nf4": 4, "bnb.nf4-dq": 4, "bnb.fp4": 4, "bnb.fp4-dq": 4, "bnb.int8-training": 8}


def read(config: Config) -> Facts:
    """The training facts of a litgpt config."""
    facts = simple_facts(config)
    is_pretraining = config.get("model_name") is not None
    if not is_pretraining:
        facts.update(_lora(config))
    model = config.first("checkpoint_dir", "model_name")
    # What is trained of a checkpoint is known with adapters, and by the keys that full finetuning has and lacks.
    is_full = config.get("resume") is not None and config.get("quantize") is None
    is_known = is_pretraining or "lora" in facts or is_full
    if is_known and model is not None and isinstance(model.value, str):
        name = "/".join(model.value.split("/")[-2:])  # its folder is called as on the hub
        facts["model"] = Fact(value=name, setting=model)
    quantize = config.get("quantize")
    if quantize is not None and isinstance(quantize.value, str) and quantize.value in _BITS:
        facts["quantization_bits"] = Fact(value=_BITS[quantize.value], setting=quantize)
    optimizer = config.first("optimizer.class_path", "optimizer")
    if optimizer is not None and isinstance(optimizer.value, str):
        facts["optimizer"] = Fact(value=optimizer.value, setting=optimizer)
    precision = config.get("precision")
    if precision is not None and isinstance(precision.value, str):
        width, _, mode = precision.value.partition("-")
        if width in _PRECISIONS:
            dtype = Fact(value=_PRECISIONS[width], setting=precision)
            facts["compute_dtype"] = dtype
            facts["parameter_dtype"] = Fact(value="float32", setting=precision) if mode == "mixed" else dtype
    devices = _device_count(config, is_pretraining=is_pretraining)
    if devices is not None:
        is_sharded = devices.value > 1
        is_checkpointed = is_sharded and not is_pretraining
        facts["data_parallel"] = devices
        facts["sharding"] = Fact(value=Sharding.PARAMETERS if is_sharded else Sharding.NONE, setting=devices.setting)
        facts["checkpointing"] = Fact(value=Checkpointing.FULL if is_checkpointed else Checkpointing.NONE)
        facts["accumulation_steps"] = _accumulation(config, devices.value)
    return Facts(**facts)


def _lora(config: Config) -> dict[str, Fact[Any]]:
    """What is known of adapters. Of a config without their keys it is not: any finetuning command may read it."""
    given = config.first("lora_r", "lora_alpha", "lora_dropout", *_LORA_TARGETS, "lora_head")
    if given is None:
        return {}
    facts: dict[str, Fact[Any]] = {"lora": Fact(value=True, setting=given)}
    rank = config.value("lora_r")
    if _is_count(rank) and config.on("lora_head") is None:
        targets = [name for key, names in _LORA_TARGETS.items() if config.value(key) is True for name in names]
        facts["lora_rank"] = Fact(value=rank, setting=config.get("lora_r"))
        facts["lora_targets"] = Fact(value=tuple(targets))
    return facts


def _device_count(config: Config, *, is_pretraining: bool) -> Fact[int] | None:
    """All devices; pretraining takes all that there are if it is not told."""
    devices, nodes = config.get("devices"), config.number("num_nodes")
    count = devices.value if devices is not None else None if is_pretraining else 1
    if not _is_count(count) or not _is_count(nodes):
        return None
    return Fact(value=count * nodes, setting=devices or config.get("num_nodes"))


def _accumulation(config: Config, devices: int) -> Fact[int] | None:
    """Micro-batches per optimizer step, which litgpt rounds down."""
    setting, micro = config.get("train.global_batch_size"), config.value("train.micro_batch_size")
    if setting is None or not _is_count(setting.value) or not _is_count(micro):
        return None
    steps = setting.value // devices // micro
    return Fact(value=steps, setting=setting) if steps > 0 else None


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
