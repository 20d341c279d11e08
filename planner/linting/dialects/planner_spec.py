"""What a model spec asks for. `planner.spec` says whether it is one; what does not fit is left out here."""

from typing import Any

from planner.configs.config import Config
from planner.configs.facts import Attention, Checkpointing, Fact, Facts, Loss, Sharding

# Facts that are a key's value, with their type.
_PLAIN: tuple[tuple[str, str, type], ...] = (
    ("model.preset", "model", str),
    ("batch.sequence_length", "sequence_length", int),
    ("batch.micro_batch", "micro_batch", int),
    ("gradient_accumulation", "accumulation_steps", int),
    ("precision.parameters", "parameter_dtype", str),
    ("precision.compute", "compute_dtype", str),
    ("optimizer.name", "optimizer", str),
    ("optimizer.in_backward", "optimizer_in_backward", bool),
    ("offload.activations", "activation_offload", bool),
    ("offload.optimizer", "optimizer_offload", bool),
    ("offload.parameters", "parameter_offload", bool),
    ("lora.rank", "lora_rank", int),
    ("parallel.tp", "tensor_parallel", int),
    ("parallel.sp", "sequence_parallel", bool),
    ("parallel.cp", "context_parallel", int),
    ("parallel.pp", "pipeline_parallel", int),
    ("parallel.ep", "expert_parallel", int),
    ("parallel.world_size", "ranks", int),
)
_CHECKPOINTING = {
    "none": Checkpointing.NONE,
    "block": Checkpointing.FULL,
    "selective": Checkpointing.SELECTIVE,
}
_LOSS = {"full": Loss.FULL, "chunked": Loss.CHUNKED, "fused": Loss.FULL, "fused-linear": Loss.FUSED}
_ATTENTION = {"flash": Attention.FLASH, "eager": Attention.EAGER, "efficient": Attention.SDPA, "cudnn": Attention.SDPA}
_ZERO = {1: Sharding.OPTIMIZER, 2: Sharding.GRADIENTS, 3: Sharding.PARAMETERS}


def read(config: Config) -> Facts:
    """The training facts of a model spec."""
    facts: dict[str, Fact[Any]] = {}
    for key, name, wanted in _PLAIN:
        setting = config.get(key)
        if setting is not None and type(setting.value) is wanted:
            facts[name] = Fact(value=setting.value, setting=setting)
    for key, name, words, default in (
        ("checkpointing", "checkpointing", _CHECKPOINTING, "none"),
        ("loss_kernel", "loss", _LOSS, "full"),
        ("attention", "attention", _ATTENTION, "flash"),
    ):
        setting = config.get(key)
        word = default if setting is None else setting.value
        if isinstance(word, str) and word in words:
            facts[name] = Fact(value=words[word], setting=setting)
        elif key == "checkpointing" and config.get("checkpointing.every") is not None:
            facts[name] = Fact(value=Checkpointing.FULL, setting=setting)
    return Facts(**facts, lora=_lora(config), **_data_parallel(config))


def _lora(config: Config) -> Fact[bool]:
    lora = config.get("lora")
    return Fact(value=lora is not None and lora.value is not None, setting=lora)


def _data_parallel(config: Config) -> dict[str, Fact[Any]]:
    shards, replicas, zero = (config.get(f"parallel.{key}") for key in ("fsdp", "ddp", "zero"))
    if shards is not None and type(shards.value) is int and shards.value > 1:
        return {
            "sharding": Fact(value=Sharding.PARAMETERS, setting=shards),
            "data_parallel": Fact(value=shards.value, setting=shards),
        }
    kind = _ZERO.get(zero.value, Sharding.NONE) if zero is not None and type(zero.value) is int else Sharding.NONE
    facts: dict[str, Fact[Any]] = {"sharding": Fact(value=kind, setting=zero)}
    if replicas is not None and type(replicas.value) is int:
        facts["data_parallel"] = Fact(value=replicas.value, setting=replicas)
    return facts
