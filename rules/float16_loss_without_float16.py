"""A loss in float16 in a run that is not."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.diagnostics import Report, Rule, Severity, Source


def find(config: Config) -> Iterator[Report]:
    """A report where GPT-NeoX's loss is to be float16 and the file asks for another precision."""
    loss, dtype = config.on("fp16_lm_cross_entropy"), config.facts.compute_dtype
    if loss is not None and dtype is not None and dtype.value != "float16" and dtype.setting is not None:
        yield report(
            loss,
            f"fp16_lm_cross_entropy works in a float16 run only, and this one is {dtype.value}",
            help="set fp16_lm_cross_entropy to false",
            related=[(dtype.setting, "the precision")],
        )


RULE = Rule(
    code="PR303",
    name="float16-loss-without-float16",
    severity=Severity.ERROR,
    summary="The loss is to be computed in float16, and the run is in another precision.",
    why="GPT-NeoX refuses the config: `lm cross entropy in fp16 only support in fp16 mode`.",
    instead="`fp16_lm_cross_entropy: false`: the logits are then float32 in the loss, which takes twice their memory.",
    sources=(Source(title="GPT-NeoX main", where="megatron/neox_arguments/arguments.py, validate_values"),),
    find=find,
    dialects=("gpt_neox",),
)
