"""A part of an Accelerate config is for another distributed_type than the config's, and is not used."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.configs.tree import Mapping
from planner.diagnostics import Report, Rule, Severity, Source

_TYPE_BY_PART = {"fsdp_config": "FSDP", "deepspeed_config": "DEEPSPEED", "megatron_lm_config": "MEGATRON_LM"}


def find(config: Config) -> Iterator[Report]:
    """A report for each such part that has anything in it, where no other part is used."""
    kind = config.get("distributed_type")
    if kind is None or kind.value in _TYPE_BY_PART.values() or not isinstance(kind.value, str):
        return
    for part, wanted in _TYPE_BY_PART.items():
        setting = config.get(part)
        if setting is not None and isinstance(setting.node, Mapping) and setting.node.by_key:
            yield report(
                kind,
                f"{part} is not used: it counts only with distributed_type: {wanted}, and with {kind.value} every GPU "
                "holds parameters, gradients and optimizer state whole",
                help=f"set distributed_type: {wanted}, or remove {part}",
                related=[(setting.at_key, "not used")],
            )


RULE = Rule(
    code="PL204",
    name="settings-of-another-launcher",
    severity=Severity.NO_OP,
    summary="An Accelerate config has settings for FSDP, DeepSpeed or Megatron-LM, and another distributed_type.",
    why="accelerate launch decides by distributed_type alone. With MULTI_GPU each GPU holds the whole model and its "
    "optimizer state: for AdamW in mixed precision 16 bytes per parameter and more.",
    instead="The distributed_type that the settings are for.",
    sources=(Source(title="accelerate 1.15", where="accelerate/commands/launch.py: _validate_launch_command"),),
    find=find,
    dialects=("accelerate",),
)
