"""Evaluation keeps the predictions of all batches on the GPU until its end."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.diagnostics import Report, Rule, Severity, Source


def find(config: Config) -> Iterator[Report]:
    """A report where evaluation is on and nothing says when predictions go to the host."""
    when = config.first("eval_strategy", "evaluation_strategy")
    if when is None or when.value in (None, False, "no"):
        return
    if any(config.get(key) is not None for key in ("eval_accumulation_steps", "batch_eval_metrics")):
        return
    if config.on("prediction_loss_only") is None:
        yield report(
            when,
            "where the script computes metrics, logits of all evaluation batches stay on the GPU until the end",
            help="set eval_accumulation_steps: 1, batch_eval_metrics: true or prediction_loss_only: true",
        )


RULE = Rule(
    code="EV203",
    name="predictions-held-on-device",
    severity=Severity.WASTE,
    summary="eval_accumulation_steps is not set, so that predictions are gathered on the GPU.",
    why="With compute_metrics the Trainer keeps what the model returns for every batch: 1,000 rows of 1,024 tokens "
    "with a vocabulary of 32,000 are 131 GB in float32. Without compute_metrics only losses are kept, which a config "
    "does not show: hence this rule is silent unless asked for.",
    instead="`eval_accumulation_steps`, which moves predictions to the host after so many batches; "
    "`batch_eval_metrics`; or preprocess_logits_for_metrics in the script, which takes the argmax first.",
    sources=(
        Source(title="transformers 5.24", where="src/transformers/training_args.py: eval_accumulation_steps"),
        Source(title="transformers 5.24", where="src/transformers/trainer.py: Trainer.evaluation_loop"),
    ),
    find=find,
    dialects=("transformers", "trl", "llamafactory"),
    opt_in=True,
)
