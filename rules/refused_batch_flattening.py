"""Rows joined without padding, where the framework refuses that."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.configs.facts import Attention
from planner.diagnostics import Report, Rule, Severity, Source

# Which of them know where rows end. Hub kernels and the like are not judged.
_WITHOUT_ROW_ENDS = (Attention.EAGER, Attention.SDPA)


def find(config: Config) -> Iterator[Report]:
    """A report where attention does not know where rows end, and where rows are packed already."""
    return _v1(config) if config.dialect.name == "llamafactory_v1" else _axolotl(config)


def _v1(config: Config) -> Iterator[Report]:
    strategy, attention = config.get("batching_strategy"), config.facts.attention
    if strategy is None or strategy.value != "padding_free" or attention is None:
        return
    if attention.value is not Attention.FLASH:
        yield report(
            strategy,
            f"LLaMA-Factory refuses padding_free with {attention.value} attention",
            help="set flash_attn: flash_attention_2",
            related=[(attention.setting, "the attention")] if attention.setting else [],
        )


def _axolotl(config: Config) -> Iterator[Report]:
    attention = config.facts.attention
    flattening = config.on("batch_flattening")
    if flattening is None:
        return
    if attention is None or attention.value in _WITHOUT_ROW_ENDS:
        yield report(
            flattening,
            "axolotl refuses batch_flattening with an attention that does not know where rows end",
            help="set attn_implementation: flash_attention_2, or batch_flattening: auto",
            related=[(attention.setting, "the attention")] if attention and attention.setting else [],
        )
    if packing := config.on("sample_packing"):
        yield report(
            flattening,
            "axolotl refuses batch_flattening beside sample_packing, which joins rows already",
            help="remove one of the two",
            related=[(packing, "rows are packed")],
        )


RULE = Rule(
    code="PK104",
    name="refused-batch-flattening",
    severity=Severity.ERROR,
    summary="Rows are joined without padding and without a varlen attention kernel, or beside packing.",
    why="The rows of a flattened batch are told apart by the attention kernel alone. axolotl and LLaMA-Factory's v1 "
    "check that before training.",
    instead="Flash attention; in axolotl also `batch_flattening: auto`, which is on only where it works.",
    sources=(
        Source(title="axolotl 0.19.0", where="utils/schemas/validation.py, check_batch_flattening_fa"),
        Source(title="LLaMA-Factory 0.9.5", where="llamafactory/v1/core/base_trainer.py, _create_batch_generator"),
    ),
    find=find,
    dialects=("axolotl", "llamafactory_v1"),
)
