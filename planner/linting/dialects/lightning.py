"""What a Lightning CLI config asks for. What its model and data do is their own; the trainer is read here."""

from typing import Any

from planner.configs.config import Config, Setting
from planner.configs.facts import Checkpointing, Fact, Facts, Sharding
from planner.linting.dialects import simple_facts

_DTYPES = {"bf16": "bfloat16", "16": "float16", "32": "float32", "64": "float64"}
_SHARDING = {
    "ddp": Sharding.NONE,
    "fsdp": Sharding.PARAMETERS,
    "deepspeed_stage_1": Sharding.OPTIMIZER,
    "deepspeed_stage_2": Sharding.GRADIENTS,
    "deepspeed_stage_3": Sharding.PARAMETERS,
}
_FSDP_SHARDING = {
    "FULL_SHARD": Sharding.PARAMETERS,
    "HYBRID_SHARD": Sharding.PARAMETERS,
    "SHARD_GRAD_OP": Sharding.GRADIENTS,
    "NO_SHARD": Sharding.NONE,
}


def read(config: Config) -> Facts:
    """The training facts of a Lightning CLI config."""
    facts = simple_facts(config)
    precision = config.get("trainer.precision")
    if precision is not None:
        dtype = _DTYPES.get(str(precision.value).partition("-")[0])
        facts["compute_dtype"] = Fact(value=dtype, setting=precision) if dtype is not None else None
    optimizer = config.first("optimizer.class_path", "optimizer")
    if optimizer is not None and isinstance(optimizer.value, str):
        facts["optimizer"] = Fact(value=optimizer.value, setting=optimizer)
    strategy = config.first("trainer.strategy.class_path", "trainer.strategy")
    if strategy is not None and isinstance(strategy.value, str):
        facts.update(_strategy_facts(config, strategy, strategy.value.rpartition(".")[2]))
    return Facts(**facts)


def _strategy_facts(config: Config, strategy: Setting, name: str) -> dict[str, Fact[Any]]:
    """What a strategy says, by its registered name or by its class with its arguments."""
    facts: dict[str, Fact[Any]] = {}
    if name == "FSDPStrategy":
        sharding = config.get("trainer.strategy.init_args.sharding_strategy")
        kind = Sharding.PARAMETERS if sharding is None else _FSDP_SHARDING.get(str(sharding.value))
        if kind is not None:
            facts["sharding"] = Fact(value=kind, setting=sharding or strategy)
        offload = config.on("trainer.strategy.init_args.cpu_offload")
        facts["parameter_offload"] = Fact(value=offload is not None, setting=offload or strategy)
        facts["optimizer_offload"] = facts["parameter_offload"]  # it works where the parameters are
        policy = config.first(
            "trainer.strategy.init_args.activation_checkpointing_policy",
            "trainer.strategy.init_args.activation_checkpointing",
        )
        if policy is not None and policy.value:
            facts["checkpointing"] = Fact(value=Checkpointing.FULL, setting=policy)
            facts["reentrant"] = Fact(value=False, setting=policy)
        return facts
    stage = next((kind for prefix, kind in reversed(_SHARDING.items()) if name.startswith(prefix)), None)
    if stage is not None:
        facts["sharding"] = Fact(value=stage, setting=strategy)
        if "offload" in name:
            facts["optimizer_offload"] = Fact(value=True, setting=strategy)
            facts["parameter_offload"] = Fact(value=name != "deepspeed_stage_2_offload", setting=strategy)
    return facts
