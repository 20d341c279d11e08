"""Two switches of activation checkpointing of which each turns the other off."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.diagnostics import Report, Rule, Severity, Source


def find(config: Config) -> Iterator[Report]:
    """A report where both of torchtune's switches are on."""
    switch, mode = config.on("enable_activation_checkpointing"), config.get("ac_mode")
    if switch is None or mode is None or not isinstance(mode.value, str):
        return
    yield report(
        mode,
        "ac_mode does nothing while enable_activation_checkpointing is true; the recipes that read it then checkpoint "
        "no layer at all, so every activation is kept",
        help="remove ac_mode to checkpoint every layer, or set enable_activation_checkpointing: false for ac_mode's "
        "way",
        related=[(switch, "the other switch")],
    )


RULE = Rule(
    code="RC301",
    name="checkpointing-switches-that-cancel",
    severity=Severity.NO_OP,
    summary="Both of torchtune's switches for activation checkpointing are set, and neither applies.",
    why="The distributed recipes for full and quantization-aware finetuning apply `ac_mode` only where "
    "`enable_activation_checkpointing` is false, and the latter only where `ac_mode` is not set. With both, no layer "
    "is checkpointed and nothing says so. Other recipes do not read `ac_mode`.",
    instead="One of the two: `enable_activation_checkpointing: true` for every layer, or `ac_mode` and `ac_option`.",
    sources=(Source(title="torchtune 0.6.1", where="recipes/full_finetune_distributed.py, _setup_model"),),
    find=find,
    dialects=("torchtune",),
)
