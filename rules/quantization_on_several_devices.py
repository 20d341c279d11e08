"""Quantized finetuning that litgpt does on one device only."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.diagnostics import Report, Rule, Severity, Source


def find(config: Config) -> Iterator[Report]:
    """A report where litgpt is to quantize and to use more than one device."""
    quantize, devices = config.get("quantize"), config.facts.data_parallel
    if quantize is None or not quantize.value or devices is None or devices.value <= 1 or devices.setting is None:
        return
    yield report(
        devices.setting,
        f"litgpt quantizes on one device only, and {devices.value} are asked for",
        help="set devices: 1 and num_nodes: 1, or leave quantize empty: several devices shard the weights",
        related=[(quantize, "quantized here")],
    )


RULE = Rule(
    code="PL307",
    name="quantization-on-several-devices",
    severity=Severity.ERROR,
    summary="litgpt is to finetune a quantized model on several devices.",
    why="litgpt raises `Quantization is currently not supported for multi-GPU training`: it does not shard "
    "bitsandbytes' weights.",
    instead="One device with `quantize`, or several without.",
    sources=(Source(title="litgpt 0.5.13", where="litgpt/finetune/lora.py, setup"),),
    find=find,
    dialects=("litgpt",),
)
