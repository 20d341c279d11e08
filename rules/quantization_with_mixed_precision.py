"""Quantized weights under autocast, which litgpt refuses, and which is its default."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.diagnostics import Report, Rule, Severity, Source


def find(config: Config) -> Iterator[Report]:
    """A report where litgpt is to quantize and the precision is mixed, by the file or by default."""
    quantize, precision = config.get("quantize"), config.get("precision")
    if quantize is None or not isinstance(quantize.value, str) or not quantize.value.startswith("bnb."):
        return
    value = None if precision is None else precision.value
    if value is not None and "mixed" not in str(value):
        return
    yield report(
        quantize,
        "quantized weights do not work with mixed precision"
        + (", which is litgpt's default" if value is None else f", and precision is {value}"),
        help="set precision: bf16-true",
        related=[(precision, "the precision")],
    )


RULE = Rule(
    code="PR302",
    name="quantization-with-mixed-precision",
    severity=Severity.ERROR,
    summary="litgpt is to finetune a quantized model in mixed precision.",
    why="litgpt raises `Quantization and mixed precision is not supported.` Where `precision` is not set it takes "
    "`bf16-mixed`, or `16-mixed` on GPUs without bfloat16, so that it must be set.",
    instead="`precision: bf16-true`.",
    sources=(
        Source(title="litgpt 0.5.13", where="litgpt/finetune/lora.py, setup"),
        Source(title="litgpt 0.5.13", where="litgpt/utils.py, get_default_supported_precision"),
    ),
    find=find,
    dialects=("litgpt",),
)
