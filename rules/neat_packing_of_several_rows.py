"""Neatly packed rows with flash attention, several to a batch, which LLaMA-Factory's collator does not take."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.diagnostics import Report, Rule, Severity, Source

_SINCE = (0, 9, 5)


def find(config: Config) -> Iterator[Report]:
    """A report where a batch has more than one row, as it has unless the config says otherwise."""
    packing, kernel = config.on("neat_packing"), config.get("flash_attn")
    if packing is None or kernel is None or kernel.value != "fa2" or config.target < _SINCE:
        return
    rows, count = config.get("per_device_train_batch_size"), config.number("per_device_train_batch_size")
    if count is None or count <= 1:
        return
    yield report(
        rows or packing,
        f"LLaMA-Factory fails at the first step: neat_packing with fa2 takes one row at a time, and "
        f"per_device_train_batch_size is {count}" + ("" if rows else ", its default"),
        help=f"set per_device_train_batch_size: 1, and multiply cutoff_len by {count} for as many tokens",
        related=[(packing, "rows are packed")] if rows else [],
    )


RULE = Rule(
    code="PK105",
    name="neat-packing-of-several-rows",
    severity=Severity.ERROR,
    summary="Neat packing with flash attention, and batches of several rows.",
    why="The collator asserts that a batch has one row, since it drops the mask and leaves the documents' ends to "
    "positions, which flash attention reads of one row only. The default of Hugging Face is 8 rows.",
    instead="`per_device_train_batch_size: 1` with longer rows.",
    sources=(
        Source(title="LLaMA-Factory 0.9.5", where="llamafactory/data/collator.py, SFTDataCollatorWith4DAttentionMask"),
    ),
    find=find,
    dialects=("llamafactory",),
)
