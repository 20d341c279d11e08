"""DeepSpeed's batch size is micro-batch times accumulation times ranks; these cannot be."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.diagnostics import Report, Rule, Severity, Source

_KEYS = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")


def find(config: Config) -> Iterator[Report]:
    """A report where no number of ranks makes the three sizes agree."""
    settings = [config.get(key) for key in _KEYS]
    whole, micro, steps = (None if setting is None else setting.value for setting in settings)
    if not all(isinstance(value, int) and not isinstance(value, bool) and value > 0 for value in (whole, micro)):
        return
    if steps is None:
        steps = 1
    assert isinstance(whole, int)
    assert isinstance(micro, int)
    assert settings[0] is not None
    if not isinstance(steps, int) or steps < 1 or whole % (micro * steps) == 0:
        return
    yield report(
        settings[0],
        f"{whole} rows in all are not a multiple of {micro} rows per GPU times {steps} accumulation "
        f"step{'s' if steps > 1 else ''}: DeepSpeed refuses this with any number of GPUs",
        help=f"a multiple of {micro * steps}, or leave train_batch_size out",
        related=[(setting, "a factor") for setting in settings[1:] if setting is not None],
    )


RULE = Rule(
    code="PL202",
    name="batch-sizes-do-not-multiply",
    severity=Severity.ERROR,
    summary="train_batch_size is no multiple of micro-batch size times accumulation steps.",
    why="DeepSpeed asserts that train_batch_size = micro-batch size x accumulation steps x data-parallel ranks.",
    instead="Two of the three: DeepSpeed works out the third.",
    sources=(Source(title="DeepSpeed 0.19.8", where="deepspeed/runtime/config.py: DeepSpeedConfig._batch_assertion"),),
    find=find,
    dialects=("deepspeed",),
)
