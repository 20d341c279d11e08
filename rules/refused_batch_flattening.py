"""Batch flattening that axolotl refuses."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.configs.facts import Attention
from planner.diagnostics import Report, Rule, Severity, Source

# Which of them know where rows end. Hub kernels and the like are not judged.
_WITHOUT_ROW_ENDS = (Attention.EAGER, Attention.SDPA)


def find(config: Config) -> Iterator[Report]:
    """A report where attention does not know where rows end, and where rows are packed already."""
    flattening, attention = config.on("batch_flattening"), config.facts.attention
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
    summary="Batch flattening without a varlen attention kernel, or beside packing.",
    why="The rows of a flattened batch are told apart by the attention kernel alone. axolotl checks that before "
    "training.",
    instead="`batch_flattening: auto`, which is on only where it works.",
    sources=(Source(title="axolotl 0.19.0", where="utils/schemas/validation.py, check_batch_flattening_fa"),),
    find=find,
    dialects=("axolotl",),
)
