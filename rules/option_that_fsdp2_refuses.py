"""An option that only FSDP1 has is asked for with FSDP2, which refuses it."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.configs.sharding import fsdp_setting, fsdp_version, fsdp_words
from planner.diagnostics import Report, Rule, Severity, Source

_HYBRID = "set fsdp: true, and parallelism_config with dp_replicate_size and dp_shard_size"
_INSTEAD = {
    "hybrid_shard": _HYBRID,
    "hybrid_shard_zero2": _HYBRID,
    "no_shard": "remove fsdp: without sharding it is plain data parallelism",
}
_LOCAL = "LOCAL_STATE_DICT"


def find(config: Config) -> Iterator[Report]:
    """A report for each such option."""
    if fsdp_version(config) != 2:
        return
    if config.dialect.name != "accelerate":
        yield from _strategies(config)
        if not fsdp_words(config):
            return
    elif config.value("distributed_type") != "FSDP":
        return
    state = fsdp_setting(config, "state_dict_type")
    if state is not None and str(state.value).upper() == _LOCAL:
        named = config.get("fsdp_config") if state.document is not config.document else None
        yield report(
            named or state,
            f"FSDP2 refuses {_LOCAL}",
            help="use SHARDED_STATE_DICT",
            related=[(state, "it is asked for here")] if named is not None else [],
        )


def _strategies(config: Config) -> Iterator[Report]:
    setting = config.get("fsdp")
    for word in fsdp_words(config):
        if word in _INSTEAD and setting is not None:
            version = fsdp_setting(config, "version")
            told = "" if version is not None else ", the default of this release,"
            yield report(
                setting,
                f"FSDP2{told} has no {word}, and Transformers refuses it",
                help=_INSTEAD[word],
                related=[(version, "the version")] if version is not None else [],
            )


RULE = Rule(
    code="PL209",
    name="option-that-fsdp2-refuses",
    severity=Severity.ERROR,
    summary="A sharding strategy or state dict of FSDP1 is asked for with FSDP2.",
    why="From Transformers 5.11 on fsdp_config means FSDP2 where it does not say. FSDP2 shards within a device mesh: "
    "TrainingArguments fail on `hybrid_shard` and `no_shard`; Accelerate fails on LOCAL_STATE_DICT.",
    instead="`fsdp: true`. For hybrid sharding, parallelism_config with dp_replicate_size and dp_shard_size.",
    sources=(
        Source(title="transformers 5.24", where="src/transformers/training_args.py: _apply_legacy_fsdp_to_config"),
        Source(title="accelerate 1.15", where="accelerate/utils/dataclasses.py: FullyShardedDataParallelPlugin"),
    ),
    find=find,
    dialects=("transformers", "trl", "accelerate"),
)
