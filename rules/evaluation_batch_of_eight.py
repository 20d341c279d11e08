"""The evaluation batch is the default of 8 rows, and the training batch was made smaller."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.diagnostics import Report, Rule, Severity, Source


def find(config: Config) -> Iterator[Report]:
    """A report where evaluation is on and its batch, left at the default, is larger than the training batch."""
    micro, evaluation = config.facts.micro_batch, config.facts.eval_batch
    when = config.first("eval_strategy", "evaluation_strategy", "do_eval")
    if micro is None or micro.setting is None or evaluation is None or evaluation.setting is not None:
        return
    if when is None or when.value in (None, False, "no") or config.on("auto_find_batch_size") is not None:
        return
    if evaluation.value > micro.value > 0:
        yield report(
            micro.setting,
            f"a training batch has {micro.value} row{'s' if micro.value > 1 else ''}, and an evaluation batch "
            f"{evaluation.value}, the default: its logits are {evaluation.value / micro.value:g} times as large",
            help=f"set per_device_eval_batch_size: {micro.value}",
            related=[(when, "evaluation is on here")],
        )


RULE = Rule(
    code="EV202",
    name="evaluation-batch-of-eight",
    severity=Severity.WASTE,
    summary="per_device_eval_batch_size is left at 8, and the training batch is smaller.",
    why="A training batch is made small because a larger one does not fit. Evaluation keeps nothing for backward, but "
    "its logits grow with the rows: 8 rows of 4,096 tokens with a vocabulary of 128,256 are 8.4 GB in bfloat16 and "
    "16.8 GB in float32. The run then ends with out-of-memory at the first evaluation, hours after it began.",
    instead="`per_device_eval_batch_size` of the size of the training batch, or one that was tried.",
    sources=(
        Source(title="transformers 5.24", where="src/transformers/training_args.py: per_device_eval_batch_size"),
        Source(title="axolotl 067b021", where="src/axolotl/utils/schemas/validation.py: warns of eval_batch_size"),
    ),
    find=find,
    dialects=("transformers", "trl", "llamafactory"),
)
