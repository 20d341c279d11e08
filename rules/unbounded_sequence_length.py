"""Rows as long as the longest document, because no length is set."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.diagnostics import Report, Rule, Severity, Source

_KEYS = {"torchtune": "tokenizer.max_seq_len", "litgpt": "train.max_seq_length"}


def find(config: Config) -> Iterator[Report]:
    """A report where a finetuning config sets no length, or sets null."""
    key = _KEYS[config.dialect.name]
    outer, _, name = key.partition(".")
    length, parent = config.get(key), config.get(outer)
    if parent is None or (length is not None and length.value is not None) or not _is_finetuning(config):
        return
    yield report(
        length or parent.at_key,
        f"without {name} a batch is as long as the longest document in it, and its activations grow with it",
        help=f"set {name} under {outer} to what the memory was planned for, such as 4096",
    )


def _is_finetuning(config: Config) -> bool:
    """Whether rows are documents: packed rows have a length of their own, and so has pretraining."""
    if config.facts.packing is not None and config.facts.packing.value:
        return False
    if config.dialect.name == "litgpt":
        return config.get("checkpoint_dir") is not None
    return config.get("optimizer") is not None and config.get("dataset") is not None


RULE = Rule(
    code="PK304",
    name="unbounded-sequence-length",
    severity=Severity.WASTE,
    summary="No sequence length is set, so that the longest document decides how much memory a step takes.",
    why="A batch is padded to its longest row. One long document late in an epoch then takes several times the memory "
    "of all batches before it, and training stops there. Many recipes leave the length open for datasets that are "
    "known to be short; so this rule speaks only when asked to.",
    instead="`max_seq_len` (torchtune) or `max_seq_length` (litgpt): longer documents are cut.",
    sources=(
        Source(title="torchtune 0.6.1", where="torchtune/models/llama3/_tokenizer.py, max_seq_len"),
        Source(title="litgpt 0.5.13", where="litgpt/finetune/lora.py, fit"),
    ),
    find=find,
    dialects=("torchtune", "litgpt"),
    opt_in=True,
)
