"""Offloading of activations that needs checkpointing, where checkpointing is off."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.configs.facts import Checkpointing
from planner.diagnostics import Report, Rule, Severity, Source


def find(config: Config) -> Iterator[Report]:
    """A report where activations are to be offloaded without checkpointing."""
    key, switch, value = _KEYS[config.dialect.name]
    offloading, checkpointing = config.get(key), config.facts.checkpointing
    if offloading is None or not offloading.value:
        return
    if config.dialect.name == "torchtune" and config.facts.activation_offload is None:
        return  # its recipe does not read the key
    if config.dialect.name == "axolotl":
        # The switch itself counts: with an adapter, offloading takes the place of the recomputation that it asks for.
        setting, is_off = config.get(switch), not config.value(switch)
    else:
        setting = None if checkpointing is None else checkpointing.setting
        is_off = checkpointing is not None and checkpointing.value is Checkpointing.NONE
    if is_off:
        yield report(
            offloading,
            f"{key} needs {switch}, which is off",
            help=f"set {switch}: {value}, or remove {key}",
            related=[(setting, "checkpointing is off here")],
        )


_KEYS = {
    "axolotl": ("activation_offloading", "gradient_checkpointing", "true"),
    "torchtune": ("enable_activation_offloading", "enable_activation_checkpointing", "true"),
    "planner_spec": ("offload.activations", "checkpointing", "block"),
}

RULE = Rule(
    code="OF101",
    name="activation-offloading-without-checkpointing",
    severity=Severity.ERROR,
    summary="Activation offloading is on, and checkpointing, which it needs, is off.",
    why="The framework checks its config before training and refuses this one, after the machines are up.",
    instead="Set `gradient_checkpointing: true` (torchtune: `enable_activation_checkpointing: true`; a spec of ours: "
    "`checkpointing: block`), or remove the offloading.",
    sources=(
        Source(title="axolotl 0.19.0", where="utils/schemas/validation.py, check_activation_offloading_wo_gc"),
        Source(title="torchtune 0.6.1", where="recipes/lora_finetune_single_device.py and ten other recipes"),
        Source(title="this planner", where="docs/estimate.md"),
    ),
    find=find,
    dialects=("axolotl", "torchtune", "planner_spec"),
)
