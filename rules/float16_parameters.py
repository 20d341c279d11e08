"""Training with parameters in float16, which torchtune's recipes refuse."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.diagnostics import Report, Rule, Severity, Source


def find(config: Config) -> Iterator[Report]:
    """A report where a config that trains has dtype fp16."""
    dtype = config.get("dtype")
    if dtype is not None and dtype.value == "fp16" and config.facts.optimizer is not None:
        yield report(
            dtype,
            "dtype: fp16 is for inference: the training recipes refuse it, since gradients underflow without a scaler",
            help="use dtype: bf16, which takes as much memory, or fp32",
        )


RULE = Rule(
    code="PR301",
    name="float16-parameters",
    severity=Severity.ERROR,
    summary="A training config asks for parameters in float16.",
    why="All of torchtune's training recipes raise an error for `fp16`: parameters, gradients and optimizer state "
    "would be in float16, without loss scaling.",
    instead="`dtype: bf16`: 2 bytes per value, as float16, with float32's range.",
    sources=(Source(title="torchtune 0.6.1", where="recipes/full_finetune_single_device.py, __init__"),),
    find=find,
    dialects=("torchtune",),
)
