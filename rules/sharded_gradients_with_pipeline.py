"""Sharded gradients, which a pipeline of DeepSpeed's does not work with."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.configs.facts import Sharding
from planner.diagnostics import Report, Rule, Severity, Source


def find(config: Config) -> Iterator[Report]:
    """A report where DeepSpeed's pipeline is to have ZeRO-2 or ZeRO-3."""
    stages, sharding = config.facts.pipeline_parallel, config.facts.sharding
    if stages is None or stages.value < _FIRST_PIPELINE or stages.setting is None or sharding is None:
        return
    if sharding.value in (Sharding.GRADIENTS, Sharding.PARAMETERS) and sharding.setting is not None:
        yield report(
            sharding.setting,
            f"ZeRO-{sharding.setting.value} does not work with a pipeline, which accumulates gradients itself",
            help="set stage to 1, or pipe_parallel_size to 1",
            related=[(stages.setting, "the pipeline")],
        )


_FIRST_PIPELINE = 2  # with 0 and with 1, GPT-NeoX runs the model without a pipeline

RULE = Rule(
    code="PL311",
    name="sharded-gradients-with-pipeline",
    severity=Severity.ERROR,
    summary="ZeRO-2 or ZeRO-3 is asked for together with a pipeline of DeepSpeed's.",
    why="DeepSpeed stops with the assertion `ZeRO-2 and ZeRO-3 are incompatible with pipeline parallelism`.",
    instead="`zero_optimization.stage: 1`, which shards the optimizer state.",
    sources=(
        Source(title="DeepSpeed 0.17.5", where="deepspeed/runtime/pipe/engine.py, PipelineEngine.__init__"),
        Source(title="GPT-NeoX main", where="megatron/neox_arguments/arguments.py, is_pipe_parallel"),
    ),
    find=find,
    dialects=("gpt_neox",),
)
