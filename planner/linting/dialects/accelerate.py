"""What a file for `accelerate launch` asks for. The training itself has a config of its own, or is a script."""

from typing import Any

from planner.configs.config import Config
from planner.configs.facts import Checkpointing, Fact, Facts, Sharding
from planner.configs.sharding import fsdp_setting, fsdp_version, is_true
from planner.linting.dialects import simple_facts

_DTYPE_BY_PRECISION = {"bf16": "bfloat16", "fp16": "float16"}
# FSDP1's strategies, by name and by torch's number. Source: accelerate 1.15.0, utils/constants.py.
_SHARDING_BY_STRATEGY = {
    "full_shard": Sharding.PARAMETERS,
    "1": Sharding.PARAMETERS,
    "shard_grad_op": Sharding.GRADIENTS,
    "2": Sharding.GRADIENTS,
    "no_shard": Sharding.NONE,
    "3": Sharding.NONE,
    "hybrid_shard": Sharding.PARAMETERS,
    "4": Sharding.PARAMETERS,
    "hybrid_shard_zero2": Sharding.GRADIENTS,
    "5": Sharding.GRADIENTS,
}
_SHARDING_BY_STAGE = {"0": Sharding.NONE, "1": Sharding.OPTIMIZER, "2": Sharding.GRADIENTS, "3": Sharding.PARAMETERS}
_SEQUENCE_PARALLELISM = "megatron_lm_config.megatron_lm_sequence_parallelism"
_DEFAULT_STAGE = "2"  # accelerate 1.15.0, utils/dataclasses.py: DeepSpeedPlugin


def read(config: Config) -> Facts:
    """The training facts of a launcher's config."""
    kind = config.value("distributed_type")
    facts = {name: fact for name, fact in simple_facts(config).items() if _counts(fact, kind)}
    precision = config.get("mixed_precision")
    if precision is not None and str(precision.value).lower() in _DTYPE_BY_PRECISION:
        facts["compute_dtype"] = Fact(value=_DTYPE_BY_PRECISION[str(precision.value).lower()], setting=precision)
    ranks = config.get("num_processes")
    if ranks is not None and isinstance(ranks.value, int) and ranks.value > 0:
        facts["ranks"] = Fact(value=ranks.value, setting=ranks)
    if kind == "FSDP":
        facts.update(_fsdp(config))
    elif kind == "DEEPSPEED" and config.get("deepspeed_config.deepspeed_config_file") is None:
        facts.update(_deepspeed(config))
    elif kind == "MEGATRON_LM" and (divided := config.get(_SEQUENCE_PARALLELISM)) is not None:
        facts["sequence_parallel"] = Fact(value=is_true(divided.value), setting=divided)
    return Facts(**facts)


def _counts(fact: Fact[Any], kind: object) -> bool:
    """Whether a fact is set in a part of the file that is read with that distributed_type."""
    part = "" if fact.setting is None else fact.setting.key.partition(".")[0]
    return part == "parallelism_config" or (part, kind) in (
        ("megatron_lm_config", "MEGATRON_LM"),
        ("deepspeed_config", "DEEPSPEED"),
    )


def _fsdp(config: Config) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    version = fsdp_version(config)
    if version == 2:
        reshard = fsdp_setting(config, "reshard_after_forward")
        keeps = reshard is not None and str(reshard.value).lower() == "false"
        facts["sharding"] = Fact(value=Sharding.GRADIENTS if keeps else Sharding.PARAMETERS, setting=reshard)
    elif version == 1:
        strategy = fsdp_setting(config, "sharding_strategy")
        name = "full_shard" if strategy is None else str(strategy.value).lower()
        if name in _SHARDING_BY_STRATEGY:
            facts["sharding"] = Fact(value=_SHARDING_BY_STRATEGY[name], setting=strategy)
    checkpointing = fsdp_setting(config, "activation_checkpointing")
    if checkpointing is not None and is_true(checkpointing.value):
        facts["checkpointing"] = Fact(value=Checkpointing.FULL, setting=checkpointing)
    offload = fsdp_setting(config, "offload_params")
    if offload is not None:
        facts["parameter_offload"] = Fact(value=is_true(offload.value), setting=offload)
    return facts


def _deepspeed(config: Config) -> dict[str, Any]:
    stage = config.get("deepspeed_config.zero_stage")
    text = _DEFAULT_STAGE if stage is None else str(stage.value)
    if text not in _SHARDING_BY_STAGE:
        return {}
    facts: dict[str, Any] = {"sharding": Fact(value=_SHARDING_BY_STAGE[text], setting=stage)}
    for name, key in (("optimizer_offload", "offload_optimizer_device"), ("parameter_offload", "offload_param_device")):
        device = config.get(f"deepspeed_config.{key}")
        if device is not None:
            facts[name] = Fact(value=device.value in ("cpu", "nvme"), setting=device)
    return facts
