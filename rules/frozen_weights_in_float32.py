"""Adapters are trained, and the frozen weights are loaded in float32 by default."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.diagnostics import Report, Rule, Severity, Source

_FLOAT32_SINCE = (0, 27)  # before, the checkpoint's own dtype was taken


def find(config: Config) -> Iterator[Report]:
    """A report where LoRA is on, nothing is quantized, and no dtype is given."""
    lora = config.facts.lora
    if lora is None or not lora.value or lora.setting is None or config.target < _FLOAT32_SINCE:
        return
    if config.facts.quantization_bits is None and config.first("dtype", "torch_dtype", "model_init_kwargs") is None:
        yield report(
            lora.setting,
            "only adapters are trained, and the frozen weights are loaded in float32, TRL's default: 4 bytes each "
            "rather than 2, which for 8 billion weights is 32 GB instead of 16",
            help="add dtype: bfloat16",
        )


RULE = Rule(
    code="PR202",
    name="frozen-weights-in-float32",
    severity=Severity.WASTE,
    summary="LoRA is on and no dtype is given, so that TRL loads the frozen weights in float32.",
    why="Weights that are trained are held in float32 for the sake of small updates. Frozen ones have no updates: with "
    "autocast they are rounded to bfloat16 for each use anyhow, and a copy in float32 takes twice the memory and a "
    "cast per use.",
    instead="`dtype: bfloat16`, or `load_in_4bit: true`. The adapters stay in float32.",
    sources=(
        Source(title="TRL 1.16", where="trl/trainer/model_config.py: dtype"),
        Source(title="PEFT", where="https://huggingface.co/docs/peft/developer_guides/lora: autocast_adapter_dtype"),
    ),
    find=find,
    dialects=("trl",),
)
