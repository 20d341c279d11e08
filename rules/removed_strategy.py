"""A strategy of Lightning 1 that Lightning 2 does not have."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.configs.edits import set_value
from planner.diagnostics import Fix, FixSafety, Report, Rule, Severity, Source

_REMOVED_IN = (2, 0, 0)
# To what stands in its place. Names that packages of their own register, such as horovod's, are not here.
_REMOVED = {
    "dp": "ddp",
    "ddp2": "ddp",
    "ddp_sharded": "fsdp",
    "ddp_sharded_spawn": "fsdp",
    "ddp_sharded_find_unused_parameters_false": "fsdp",
    "ddp_sharded_spawn_find_unused_parameters_false": "fsdp",
    "ddp_fully_sharded": "fsdp",
    "fsdp_native": "fsdp",
    "fsdp_native_full_shard_offload": "fsdp_cpu_offload",
    "tpu_spawn": "xla",
    "tpu_spawn_debug": "xla_debug",
}
_SAME = ("fsdp_native", "fsdp_native_full_shard_offload", "tpu_spawn", "tpu_spawn_debug")  # but for the name


def find(config: Config) -> Iterator[Report]:
    """A report where the trainer's strategy is a name that was removed."""
    strategy = config.get("trainer.strategy")
    if strategy is None or not isinstance(strategy.value, str) or config.target < _REMOVED_IN:
        return
    instead = _REMOVED.get(strategy.value)
    if instead is None:
        return
    safety = FixSafety.SAFE if strategy.value in _SAME else FixSafety.UNSAFE
    yield report(
        strategy,
        f"Lightning 2.0 removed the strategy {strategy.value}, and the trainer will not start",
        help=f"use {instead}",
        fix=Fix(title=f"Use {instead}", safety=safety, edits=set_value(strategy, instead)),
    )


RULE = Rule(
    code="PL308",
    name="removed-strategy",
    severity=Severity.ERROR,
    summary="The trainer's strategy is one that Lightning 2.0 removed.",
    why="Lightning raises `You selected an invalid strategy name` when the trainer is made. Sharding by FairScale "
    "(`ddp_sharded`) went away with its package; PyTorch's own FSDP has the name `fsdp` now.",
    instead="`ddp` for replicas, `fsdp` to shard parameters, gradients and optimizer state.",
    sources=(
        Source(title="Lightning 1.9.5 and 2.0.0", where="lightning/pytorch/strategies/, register_strategies"),
        Source(
            title="Lightning 2.0 migration guide",
            where="https://lightning.ai/docs/pytorch/stable/upgrade/from_1_9.html",
        ),
    ),
    find=find,
    dialects=("lightning",),
    fix=FixSafety.UNSAFE,
)
