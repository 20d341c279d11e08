"""Packed rows in training by preference or reward, which the frameworks refuse."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.diagnostics import Report, Rule, Severity, Source

# By dialect: the key that packs, the key of the method, and the methods that can be packed.
_KEYS: dict[str, tuple[str, str, tuple[object, ...]]] = {
    "axolotl": ("sample_packing", "rl", (None, False, "")),
    "llamafactory": ("neat_packing", "stage", ("sft",)),
}


def find(config: Config) -> Iterator[Report]:
    """A report where rows are packed and the method is another than language modelling."""
    key, method_key, packable = _KEYS[config.dialect.name]
    packing, method = config.on(key), config.get(method_key)
    if packing is not None and method is not None and method.value not in packable:
        yield report(
            packing,
            f"{config.dialect.framework} refuses {key} with {method_key}: {method.value}",
            help=f"set {key}: false",
            related=[(method, "the method")],
        )


RULE = Rule(
    code="PK103",
    name="packing-with-preference-data",
    severity=Severity.ERROR,
    summary="Rows are to be packed in training by preferences or rewards.",
    why="Each row there is a prompt with its completions, whose log-probabilities are summed apart: the frameworks "
    "refuse to pack them, before training.",
    instead="`sample_packing: false`, or `neat_packing: false`.",
    sources=(
        Source(title="axolotl 0.19.0", where="utils/schemas/validation.py, check_sample_packing_w_rl"),
        Source(title="LLaMA-Factory 0.9.5", where="llamafactory/hparams/parser.py, get_train_args"),
    ),
    find=find,
    dialects=("axolotl", "llamafactory"),
)
