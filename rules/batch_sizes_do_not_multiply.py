"""DeepSpeed's batch size is micro-batch times accumulation times ranks; these cannot be."""

from collections.abc import Iterator

from planner.configs.config import Config, Setting, report
from planner.diagnostics import Report, Rule, Severity, Source

_FACTORS = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps")


def find(config: Config) -> Iterator[Report]:
    """A report where the batch is no multiple of its factors, so that no number of ranks fits."""
    whole = config.get("train_batch_size")
    written = [setting for key in _FACTORS if (setting := config.get(key)) is not None]
    factors = [factor for setting in written if (factor := _size(setting)) is not None]
    size = None if whole is None else _size(whole)
    if whole is None or size is None or not factors or len(factors) < len(written):
        return
    product = factors[0] * (factors[1] if len(factors) > 1 else 1)
    if size % product:
        yield report(
            whole,
            f"{size} rows in all are no multiple of {' x '.join(map(str, factors))}: DeepSpeed refuses this with any "
            "number of GPUs",
            help=f"a multiple of {product}, or leave one of the three out",
            related=[
                (setting, "rows per GPU" if "micro" in setting.key else "accumulation steps") for setting in written
            ],
        )


def _size(setting: Setting) -> int | None:
    value = setting.value
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


RULE = Rule(
    code="PL202",
    name="batch-sizes-do-not-multiply",
    severity=Severity.ERROR,
    summary="train_batch_size is no multiple of micro-batch size and accumulation steps.",
    why="DeepSpeed asserts that train_batch_size = micro-batch size x accumulation steps x data-parallel ranks. What "
    "is left out it works out by division, and then asserts the same.",
    instead="Two of the three that fit, such as micro-batch size and accumulation steps.",
    sources=(Source(title="DeepSpeed 0.19.8", where="deepspeed/runtime/config.py: DeepSpeedConfig._batch_assertion"),),
    find=find,
    dialects=("deepspeed",),
)
