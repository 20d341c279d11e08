"""FSDP is to offload what checkpointing keeps, and there is no checkpointing, or no FSDP2."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.configs.sharding import fsdp_setting, fsdp_version, is_true
from planner.diagnostics import Report, Rule, Severity, Source


def find(config: Config) -> Iterator[Report]:
    """A report where activation_checkpointing_offload lacks what it needs."""
    offload = fsdp_setting(config, "activation_checkpointing_offload")
    if offload is None or not is_true(offload.value) or config.value("distributed_type") != "FSDP":
        return
    checkpointing, version = fsdp_setting(config, "activation_checkpointing"), fsdp_setting(config, "version")
    if checkpointing is None or not is_true(checkpointing.value):
        yield report(
            offload,
            "fsdp_activation_checkpointing_offload needs fsdp_activation_checkpointing, which is off",
            help="set fsdp_activation_checkpointing: true",
            related=[(checkpointing, "it is off here")] if checkpointing is not None else [],
        )
    elif fsdp_version(config) == 1:
        yield report(
            offload,
            "fsdp_activation_checkpointing_offload needs FSDP2, and this is FSDP1"
            + ("" if version is not None else ", Accelerate's default"),
            help="set fsdp_version: 2",
            related=[(version, "the version")] if version is not None else [],
        )


RULE = Rule(
    code="OF202",
    name="checkpoint-offload-without-checkpointing",
    severity=Severity.ERROR,
    summary="FSDP is to offload checkpoints without checkpointing, or in version 1.",
    why="Accelerate raises an error when training begins.",
    instead="`fsdp_activation_checkpointing: true` and `fsdp_version: 2`.",
    sources=(Source(title="accelerate 1.15", where="accelerate/utils/dataclasses.py: FullyShardedDataParallelPlugin"),),
    find=find,
    dialects=("accelerate",),
)
