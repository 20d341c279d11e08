"""What a DeepSpeed config asks for."""

from typing import Any

from planner.configs.config import Config
from planner.configs.facts import Fact, Facts, Sharding
from planner.configs.sharding import zero_stage
from planner.linting.dialects import simple_facts

_SHARDING_BY_STAGE = {0: Sharding.NONE, 1: Sharding.OPTIMIZER, 2: Sharding.GRADIENTS, 3: Sharding.PARAMETERS}
_HOST_DEVICES = ("cpu", "nvme")


def read(config: Config) -> Facts:
    """The training facts of a DeepSpeed config."""
    facts = simple_facts(config)
    facts.update(_zero(config))
    for key, dtype in (("bf16", "bfloat16"), ("bfloat16", "bfloat16"), ("fp16", "float16")):
        enabled = config.on(f"{key}.enabled")
        if enabled is not None:
            facts["compute_dtype"] = Fact(value=dtype, setting=enabled)
    parallel = config.get("tensor_parallel.autotp_size")
    if parallel is not None and isinstance(parallel.value, int) and parallel.value > 1:
        facts["tensor_parallel"] = Fact(value=parallel.value, setting=parallel)
    compiled = config.on("compile.deepcompile")
    if compiled is not None:
        facts["compile"] = Fact(value=True, setting=compiled)
    return Facts(**facts)


def _zero(config: Config) -> dict[str, Any]:
    stage = zero_stage(config)
    if stage not in _SHARDING_BY_STAGE:
        return {}
    facts: dict[str, Any] = {
        "sharding": Fact(
            value=_SHARDING_BY_STAGE[stage], setting=config.first("zero_optimization.stage", "zero_optimization")
        )
    }
    for name, key, lowest in (("optimizer_offload", "offload_optimizer", 1), ("parameter_offload", "offload_param", 3)):
        device = config.get(f"zero_optimization.{key}.device")
        if device is not None and isinstance(device.value, str) and device.value != "auto":
            is_used = stage >= lowest and device.value in _HOST_DEVICES
            facts[name] = Fact(value=is_used, setting=device)
    return facts
