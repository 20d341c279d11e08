"""TRL's SFT refuses padding-free batches without packing, unless max_length is null."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.diagnostics import Report, Rule, Severity, Source

_REFUSED_SINCE = (1, 0)  # the first of the releases read that does; 0.29.0 does not
# Of SFTConfig alone, so that the config is for no other trainer.
_SFT_KEYS = ("packing", "packing_strategy", "eval_packing", "dataset_text_field", "completion_only_loss")
_DEFAULT_LENGTH = 1024


def find(config: Config) -> Iterator[Report]:
    """A report where SFT is padding-free, does not pack, and has a length to cut to."""
    padding_free, length = config.on("padding_free"), config.first("max_length", "max_seq_length")
    if padding_free is None or config.target < _REFUSED_SINCE or config.on("packing") is not None:
        return
    if config.first(*_SFT_KEYS, "assistant_only_loss") is None or (length is not None and length.value is None):
        return
    shown = f"max_length {length.value}" if length is not None else f"TRL's default max_length, {_DEFAULT_LENGTH}"
    yield report(
        padding_free,
        f"without packing, padding_free does not cut rows to {shown}, and TRL refuses the two together",
        help="set packing: true, which is padding-free and cuts; or max_length: null, and cut rows beforehand",
        related=[(length, "the length")] if length is not None else [],
    )


RULE = Rule(
    code="PK201",
    name="padding-free-with-max-length",
    severity=Severity.ERROR,
    summary="padding_free is on without packing, and max_length is not null.",
    why="Rows would not be cut, so that one long row decides the memory of a step; SFTTrainer raises an error.",
    instead="`packing: true`, or `max_length: null` with data that is short enough.",
    sources=(Source(title="TRL 1.16", where="trl/trainer/sft_trainer.py: SFTTrainer.__init__"),),
    find=find,
    dialects=("trl",),
)
