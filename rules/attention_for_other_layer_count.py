"""A list of attention kinds for another number of layers than the model has."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.diagnostics import Report, Rule, Severity, Source


def find(config: Config) -> Iterator[Report]:
    """A report where GPT-NeoX's attention_config, written out, is not one kind per layer."""
    attention, layers = config.get("attention_config"), config.get("num_layers")
    if attention is None or layers is None or not isinstance(layers.value, int):
        return
    count = _layers(attention.value)
    if count is not None and count != layers.value:
        yield report(
            attention,
            f"attention_config names a kind of attention for {count} layers, and num_layers is {layers.value}",
            help='repeat it num_layers times, or write "all" for the number',
            related=[(layers, "the layers")],
        )


def _layers(value: object) -> int | None:
    """For how many layers a config is: [[["global", "local"], 6]] is for 12. None where it is for all, or malformed."""
    if not isinstance(value, list):
        return None
    if all(isinstance(kind, str) for kind in value):
        return len(value)
    count = 0
    for item in value:
        match item:
            case [list() as kinds, int() as times]:
                count += len(kinds) * times
            case _:
                return None
    return count


RULE = Rule(
    code="AT301",
    name="attention-for-other-layer-count",
    severity=Severity.ERROR,
    summary="GPT-NeoX's attention_config is for another number of layers than the model has.",
    why="The list is written out to one kind of attention per layer. GPT-NeoX stops with the assertion `Length of "
    "attention config list must equal num_layers`.",
    instead='`[[["flash"], "all"]]`, or the number of layers.',
    sources=(
        Source(title="GPT-NeoX main", where="megatron/neox_arguments/arguments.py, calculate_derived"),
        Source(title="GPT-NeoX main", where="megatron/utils.py, expand_attention_types"),
    ),
    find=find,
    dialects=("gpt_neox",),
)
