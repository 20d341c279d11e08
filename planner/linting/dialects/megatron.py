"""What a run of Megatron-LM asks for, and what every framework built on Megatron-Core does."""

from typing import Any

from planner.configs.config import Config
from planner.configs.facts import Attention, Fact, Facts, Sharding
from planner.configs.megatron import CoreSettings, cores
from planner.linting.dialects import simple_facts

ENVIRONMENT_KEYS = ("ENV_VARS",)

_ATTENTION = {"flash": Attention.FLASH, "fused": Attention.OTHER, "unfused": Attention.EAGER, "local": Attention.EAGER}
_SHARDING = {
    "no_shard": Sharding.NONE,
    "optim": Sharding.OPTIMIZER,
    "optim_grads": Sharding.GRADIENTS,
    "optim_grads_params": Sharding.PARAMETERS,
}


def read(config: Config) -> Facts:
    """The training facts of Megatron-LM's arguments."""
    (core,) = cores(config)
    facts = core_facts(core)
    if config.value("transformer-impl") == "local":
        facts["attention"] = Fact(value=Attention.EAGER, setting=config.get("transformer-impl"))
    fsdp = config.on("use-megatron-fsdp")
    if fsdp is not None:
        facts["sharding"] = Fact(value=_SHARDING[str(config.value("data-parallel-sharding-strategy"))], setting=fsdp)
    elif (distributed := config.on("use-distributed-optimizer")) is not None:
        facts["sharding"] = Fact(value=Sharding.OPTIMIZER, setting=distributed)
    return Facts(**facts)


def core_facts(core: CoreSettings) -> dict[str, Any]:
    """The facts of a config that uses Megatron-Core: those of its schema, and those that its settings say."""
    facts = simple_facts(core.config)
    for fact in ("tensor_parallel", "pipeline_parallel", "context_parallel"):
        name = fact if fact == "context_parallel" else fact.replace("_", "_model_")
        degree = core.number(f"{name}_size")
        facts[fact] = None if degree is None else Fact(value=degree, setting=core.get(f"{name}_size"))
    kind, setting = core.recompute
    if kind is not None:
        facts["checkpointing"] = Fact(value=kind, setting=setting)
    sequence_parallel = core.get("sequence_parallel")
    if sequence_parallel is not None and isinstance(sequence_parallel.value, bool):
        facts["sequence_parallel"] = Fact(value=sequence_parallel.value, setting=sequence_parallel)
    backend = core.asked("attention_backend")
    attention = _ATTENTION.get(str(backend.value)) if backend is not None else None
    if attention is not None:
        facts["attention"] = Fact(value=attention, setting=backend)
    offload = core.asked("fine_grained_activation_offloading") or core.asked("cpu_offloading")
    if offload is not None:
        facts["activation_offload"] = Fact(value=True, setting=offload)
    for name in ("bf16", "fp16"):
        precision = core.asked(name)
        if precision is not None:
            facts["compute_dtype"] = Fact(value={"bf16": "bfloat16", "fp16": "float16"}[name], setting=precision)
    return facts
