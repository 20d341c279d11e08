"""An FSDP key that the version in use does not read."""

from collections.abc import Iterator

from planner.configs.config import Config, Setting, report
from planner.configs.sharding import fsdp_setting, fsdp_version, is_true
from planner.configs.tree import Scalar
from planner.diagnostics import Report, Rule, Severity, Source

_DEFAULT_STRATEGIES = ("full_shard", "1")


def find(config: Config) -> Iterator[Report]:
    """A report for each key that asks for what the other version does otherwise."""
    version = fsdp_version(config)
    if config.dialect.name == "accelerate" and config.value("distributed_type") != "FSDP":
        return
    told = fsdp_setting(config, "version")
    for name, help in _unread(config, version):
        setting = fsdp_setting(config, name)
        if setting is not None and isinstance(setting.node, Scalar) and _asks_for_something(name, setting):
            yield report(
                setting,
                f"FSDP{version} does not read {setting.key.rpartition('.')[2]}: {_shown(setting)} changes nothing",
                help=help,
                related=[(told, "the version")] if told is not None else [],
            )


def _unread(config: Config, version: int | None) -> Iterator[tuple[str, str]]:
    if version == 2:
        yield "sharding_strategy", "fsdp_reshard_after_forward: false does what SHARD_GRAD_OP did"
        yield "forward_prefetch", "remove it: FSDP2 prefetches in its own way"
        yield "backward_prefetch", "remove it: FSDP2 prefetches in its own way"
    elif version == 1 and config.dialect.name == "accelerate":
        yield "reshard_after_forward", "fsdp_sharding_strategy decides in FSDP1; or set fsdp_version: 2"


def _shown(setting: Setting) -> str:
    return str(setting.value).lower() if isinstance(setting.value, bool) else str(setting.value)


def _asks_for_something(name: str, setting: Setting) -> bool:
    """Whether the value differs from what the version in use does anyhow."""
    text = str(setting.value).lower()
    if setting.value is None:
        return False
    if name == "sharding_strategy":
        return text not in _DEFAULT_STRATEGIES
    if name == "reshard_after_forward":
        return text not in ("true", *_DEFAULT_STRATEGIES)
    return is_true(setting.value) if name == "forward_prefetch" else text in ("backward_pre", "backward_post")


RULE = Rule(
    code="PL205",
    name="fsdp-key-of-the-other-version",
    severity=Severity.NO_OP,
    summary="An FSDP key is set that the version in use does not read.",
    why="FSDP2 shards by reshard_after_forward alone: SHARD_GRAD_OP and HYBRID_SHARD in fsdp_sharding_strategy are not "
    "heard, and parameters are sharded fully among all ranks. Under accelerate launch FSDP1 has always a sharding "
    "strategy, by default FULL_SHARD, and reshard_after_forward is never reached.",
    instead="The key of the version in use.",
    sources=(
        Source(title="accelerate 1.15", where="accelerate/utils/dataclasses.py: FullyShardedDataParallelPlugin"),
        Source(title="transformers 5.24", where="src/transformers/training_args.py: _process_fsdp_args"),
    ),
    find=find,
    dialects=("accelerate", "transformers_fsdp"),
)
