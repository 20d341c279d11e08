"""load_best_model_at_end needs a checkpoint at each evaluation, and these come at other times."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.diagnostics import Report, Rule, Severity, Source


def find(config: Config) -> Iterator[Report]:
    """A report where the best model is to be loaded and evaluating and saving do not match."""
    best = config.on("load_best_model_at_end")
    evaluation = config.first("eval_strategy", "evaluation_strategy")
    saving = config.get("save_strategy")
    when_evaluated = config.value("eval_strategy") if evaluation is None else evaluation.value
    when_saved = config.value("save_strategy")
    if best is None or not isinstance(when_evaluated, str) or not isinstance(when_saved, str) or when_saved == "best":
        return
    if when_evaluated != when_saved:
        yield report(
            best,
            f"the best model cannot be loaded: eval_strategy is {when_evaluated}{_told(evaluation)}, and save_strategy "
            f"{when_saved}{_told(saving)}",
            help="set both to steps or both to epoch, or save_strategy: best",
            related=[(setting, "here") for setting in (evaluation, saving) if setting is not None],
        )
    elif when_evaluated == "steps":
        yield from _steps(config)


def _told(setting: object) -> str:
    return " by default" if setting is None else ""


def _steps(config: Config) -> Iterator[Report]:
    """A report where checkpoints are not written at multiples of the steps between evaluations."""
    save = config.get("save_steps")
    between = config.value("eval_steps") or config.value("logging_steps")
    saved = config.value("save_steps")
    if save is None or not _is_count(between) or not _is_count(saved) or int(str(saved)) % int(str(between)) == 0:
        return
    yield report(
        save,
        f"the best model cannot be loaded: a checkpoint every {saved} steps falls between evaluations, which come "
        f"every {between}",
        help="set save_steps to a multiple of eval_steps, or save_strategy: best",
    )


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


RULE = Rule(
    code="EV201",
    name="best-model-without-matching-evaluation",
    severity=Severity.ERROR,
    summary="load_best_model_at_end is on, and checkpoints are not written when the model is evaluated.",
    why="TrainingArguments refuse this when they are made.",
    instead="The same strategy for both, with save_steps a multiple of eval_steps; or `save_strategy: best`.",
    sources=(
        Source(title="transformers 5.24", where="src/transformers/training_args.py: TrainingArguments._validate_args"),
    ),
    find=find,
    dialects=("transformers", "trl", "llamafactory"),
)
