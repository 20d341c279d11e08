"""Packed rows in training by preference or reward, which axolotl refuses."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.diagnostics import Report, Rule, Severity, Source


def find(config: Config) -> Iterator[Report]:
    """A report where rows are packed and `rl` names a method."""
    packing, method = config.on("sample_packing"), config.get("rl")
    if packing is not None and method is not None and method.value:
        yield report(
            packing,
            f"axolotl refuses sample_packing with rl: {method.value}",
            help="set sample_packing: false; dpo_padding_free: true joins the rows of a DPO batch without padding",
            related=[(method, "the method")],
        )


RULE = Rule(
    code="PK103",
    name="packing-with-preference-data",
    severity=Severity.ERROR,
    summary="Rows are to be packed in training by preferences or rewards.",
    why="Each row there is a prompt with its completions, whose log-probabilities are summed apart: axolotl refuses to "
    "pack them, before training.",
    instead="`sample_packing: false`.",
    sources=(Source(title="axolotl 0.19.0", where="utils/schemas/validation.py, check_sample_packing_w_rl"),),
    find=find,
    dialects=("axolotl",),
)
