"""auto_find_batch_size is on where the trainer refuses it."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.configs.sharding import zero_stage
from planner.diagnostics import Report, Rule, Severity, Source

_GRPO_REFUSES_SINCE = (1, 9)  # the first release of those read whose GRPOConfig raises an error; 1.8.0 does not
_PARAMETERS_STAGE = 3


def find(config: Config) -> Iterator[Report]:
    """A report where the batch size is to be searched under ZeRO-3 or by GRPO."""
    search = config.on("auto_find_batch_size")
    if search is None:
        return
    linked = config.link("deepspeed")
    if linked is not None and zero_stage(linked) == _PARAMETERS_STAGE:
        stage = linked.get("zero_optimization.stage")
        yield report(
            search,
            "auto_find_batch_size does not work with ZeRO-3, and the Trainer refuses it",
            help="set per_device_train_batch_size to what fits, and remove auto_find_batch_size",
            related=[(stage, "stage 3 here")] if stage is not None else [],
        )
    generations = config.get("num_generations")
    if config.dialect.name == "trl" and generations is not None and config.target >= _GRPO_REFUSES_SINCE:
        yield report(
            search,
            "auto_find_batch_size would break the groups of completions that GRPO compares, and TRL refuses it",
            help="remove auto_find_batch_size, and lower per_device_train_batch_size instead",
            related=[(generations, "groups of this size")],
        )


RULE = Rule(
    code="AL201",
    name="batch-search-that-is-refused",
    severity=Severity.ERROR,
    summary="auto_find_batch_size is on together with ZeRO-3, or for GRPO.",
    why="The trainer raises an error when it is made.",
    instead="A micro-batch size that fits: `planner estimate` says which.",
    sources=(
        Source(title="transformers 5.24", where="src/transformers/trainer.py: create_accelerator_and_postprocess"),
        Source(title="TRL 1.16", where="trl/trainer/grpo_config.py: GRPOConfig.__post_init__"),
    ),
    find=find,
    dialects=("transformers", "trl", "llamafactory"),
)
