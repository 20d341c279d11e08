"""Activation offloading on a device that shares the host's memory."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.diagnostics import Report, Rule, Severity, Source

_DEVICES = ("cpu", "mps")


def find(config: Config) -> Iterator[Report]:
    """A report where activations are to be offloaded from a CPU or an Apple GPU."""
    offload, device = config.facts.activation_offload, config.get("device")
    if offload is None or not offload.value or offload.setting is None:
        return
    if device is not None and device.value in _DEVICES:
        yield report(
            offload.setting,
            f"activations can not be offloaded from device: {device.value}, which computes in the host's memory",
            help="set enable_activation_offloading: false; enable_activation_checkpointing works on every device",
            related=[(device, "the device")],
        )


RULE = Rule(
    code="OF301",
    name="activation-offloading-without-gpu",
    severity=Severity.ERROR,
    summary="Activations are to be offloaded to host memory by a device that has no other.",
    why="Offloading copies between a GPU's memory and the host's. torchtune's recipes raise an error on other devices.",
    instead="`enable_activation_offloading: false`, with `enable_activation_checkpointing: true` to save memory.",
    sources=(Source(title="torchtune 0.6.1", where="recipes/lora_finetune_single_device.py, __init__"),),
    find=find,
    dialects=("torchtune",),
)
