"""Options of activation checkpointing in a config that turns it off."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.configs.facts import Checkpointing
from planner.diagnostics import Report, Rule, Severity, Source

_OPTIONS = ("partition_activations", "checkpoint_in_cpu", "contiguous_checkpointing")


def find(config: Config) -> Iterator[Report]:
    """A report for each switch that is on while the file itself turns checkpointing off."""
    checkpointing = config.facts.checkpointing
    if checkpointing is None or checkpointing.value is not Checkpointing.NONE or checkpointing.setting is None:
        return
    for key in _OPTIONS:
        option = config.on(key)
        if option is not None:
            yield report(
                option,
                f"{option.entry.key} is about checkpoints, and none are made: every activation is kept",
                help=f"set {checkpointing.setting.entry.key} to true, or remove {option.entry.key}",
                related=[(checkpointing.setting, "checkpointing is off here")],
            )


RULE = Rule(
    code="RC305",
    name="checkpointing-option-without-checkpointing",
    severity=Severity.NO_OP,
    summary="An option of activation checkpointing is on, and checkpointing is off.",
    why="GPT-NeoX hands these switches to DeepSpeed's checkpointing, which runs only where `checkpoint_activations` is "
    "true. Nothing says that they are without effect.",
    instead="`checkpoint_activations: true`, or none of its options.",
    sources=(
        Source(
            title="GPT-NeoX main", where="megatron/initialize.py, setup_deepspeed_random_and_activation_checkpointing"
        ),
        Source(title="GPT-NeoX main", where="megatron/model/gpt2_model.py, activation_checkpoint_interval"),
    ),
    find=find,
    dialects=("gpt_neox",),
)
