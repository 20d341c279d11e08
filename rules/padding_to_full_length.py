"""Rows of one document each, padded to the full length."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.diagnostics import Report, Rule, Severity, Source


def find(config: Config) -> Iterator[Report]:
    """A report where every row is padded and none is packed."""
    facts = config.facts
    padding, length = facts.pad_to_length, facts.sequence_length
    if padding is None or not padding.value or padding.setting is None or length is None:
        return
    if facts.packing is None or facts.packing.value or config.value("rl") or config.value("reward_model"):
        return
    rows = facts.micro_batch
    each = "" if rows is None or rows.value == 1 else f", {rows.value * length.value:,} in a batch"
    yield report(
        padding.setting,
        f"every row is padded to {length.value:,} tokens{each}, however short its document: activations and compute "
        "are those of the longest",
        help="set sample_packing: true, or let batches be as long as their longest row",
        related=[(facts.packing.setting, "rows are not packed")] if facts.packing.setting else [],
    )


RULE = Rule(
    code="PK102",
    name="padding-to-full-length",
    severity=Severity.WASTE,
    summary="Rows are padded to the full length and not packed.",
    why="Padding is computed and stored like text. Lengths that do not change keep the allocator from fragmenting and "
    "let compiled code be reused, which is why some want it: this is only reported on request.",
    instead="Packing, which has full rows of constant length without padding.",
    sources=(Source(title="axolotl 0.19.0", where="core/builders/causal.py, data_collator_kwargs"),),
    find=find,
    dialects=("axolotl",),
    opt_in=True,
)
