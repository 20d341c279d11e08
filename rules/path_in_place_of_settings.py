"""A part of an Accelerate config is the path of a file, where the part's settings belong."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.diagnostics import Report, Rule, Severity, Source

_TYPE_BY_PART = {"fsdp_config": "FSDP", "deepspeed_config": "DEEPSPEED", "megatron_lm_config": "MEGATRON_LM"}


def find(config: Config) -> Iterator[Report]:
    """A report for each part that is text."""
    kind = config.get("distributed_type")
    for part, wanted in _TYPE_BY_PART.items():
        setting = config.get(part)
        if setting is None or not isinstance(setting.value, str) or not setting.value or kind is None:
            continue
        is_file = part == "deepspeed_config"
        wants_type = kind.value != wanted
        yield report(
            setting,
            f"Accelerate never opens {setting.value}: {part} is to have the settings themselves"
            + (f", and counts only with distributed_type: {wanted}" if wants_type else ""),
            help=(
                f"write deepspeed_config_file: {setting.value} below {part}" if is_file else f"list them below {part}"
            )
            + (f", and set distributed_type: {wanted}" if wants_type else ""),
            related=[(kind, "the type")] if wants_type else [],
        )


RULE = Rule(
    code="PL210",
    name="path-in-place-of-settings",
    severity=Severity.NO_OP,
    summary="A part of an Accelerate config is a path.",
    why="accelerate launch reads settings below deepspeed_config, fsdp_config and megatron_lm_config. A path is passed "
    "over without a word, and every GPU holds the whole model and its optimizer state; with distributed_type: "
    "DEEPSPEED it ends in an AttributeError.",
    instead="`deepspeed_config_file` below deepspeed_config, with `distributed_type: DEEPSPEED`.",
    sources=(
        Source(
            title="accelerate 1.15", where="accelerate/commands/launch.py: _validate_launch_command, launch_command"
        ),
    ),
    find=find,
    dialects=("accelerate",),
)
