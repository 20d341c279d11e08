"""Packing fills rows up to a length; without one there is nothing to fill."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.diagnostics import Report, Rule, Severity, Source


def find(config: Config) -> Iterator[Report]:
    """A report where a dataset of torchtune's is packed and its tokenizer has no length."""
    packing, dataset, tokenizer = (
        config.on("dataset.packed"),
        config.value("dataset._component_"),
        config.value("tokenizer._component_"),
    )
    if packing is None or not _is_own(dataset, "torchtune.datasets.") or not _is_own(tokenizer, "torchtune.models."):
        return
    length = config.get("tokenizer.max_seq_len")
    if length is None or length.value is None:
        yield report(
            packing,
            "packed: true needs tokenizer.max_seq_len, the length of a packed row, which is not set",
            help="set max_seq_len under tokenizer, such as max_seq_len: 4096",
            related=[(length, "no length here")],
        )


def _is_own(component: object, prefix: str) -> bool:
    return isinstance(component, str) and component.startswith(prefix)


RULE = Rule(
    code="PK301",
    name="packing-without-length",
    severity=Severity.ERROR,
    summary="A dataset is to be packed, and the length of a packed row is not set.",
    why="torchtune raises `PackedDataset requires a max_seq_len to be set on the tokenizer` once the model is loaded.",
    instead="`max_seq_len` under `tokenizer`: a packed row of that many tokens is what every step then computes.",
    sources=(Source(title="torchtune 0.6.1", where="torchtune/datasets/_alpaca.py and the other dataset builders"),),
    find=find,
    dialects=("torchtune",),
)
