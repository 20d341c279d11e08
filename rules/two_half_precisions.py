"""fp16 and bf16 are both on, which is refused."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.configs.sharding import is_true
from planner.diagnostics import Report, Rule, Severity, Source


def find(config: Config) -> Iterator[Report]:
    """A report where both are on."""
    suffix = ".enabled" if config.dialect.name == "deepspeed" else ""
    pairs = [("fp16", "bf16")] if suffix else [("fp16", "bf16"), ("fp16_full_eval", "bf16_full_eval")]
    for half, brain in pairs:
        first, second = config.get(half + suffix), config.get(brain + suffix)
        if first is not None and second is not None and is_true(first.value) and is_true(second.value):
            yield report(
                first,
                f"{half} and {brain} are both on, which {config.dialect.framework} refuses",
                help=f"keep {brain} on GPUs since Ampere, {half} on older ones",
                related=[(second, f"{brain} is on here")],
            )


RULE = Rule(
    code="PR201",
    name="two-half-precisions",
    severity=Severity.ERROR,
    summary="fp16 and bf16 are both on.",
    why="The framework checks this when it reads the config, and fails.",
    instead="One of the two.",
    sources=(
        Source(title="transformers 5.24", where="src/transformers/training_args.py: TrainingArguments._validate_args"),
        Source(title="DeepSpeed 0.19.8", where="deepspeed/runtime/config.py: DeepSpeedConfig._initialize_params"),
    ),
    find=find,
    dialects=("transformers", "trl", "llamafactory", "deepspeed"),
)
