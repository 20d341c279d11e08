"""Tensor parallelism without a plan of which matrices to divide."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.diagnostics import Report, Rule, Severity, Source


def find(config: Config) -> Iterator[Report]:
    """A report where the degree is above 1 and no plan is given."""
    degree, plan = config.facts.tensor_parallel, config.get("tensor_parallel_plan")
    if degree is None or degree.value <= 1 or degree.setting is None:
        return
    if plan is None or plan.value is None:
        yield report(
            degree.setting,
            f"tensor_parallel_dim is {degree.value}, and tensor_parallel_plan, which says what to divide, is not set",
            help="add tensor_parallel_plan with the model's plan, such as torchtune.models.llama3.base_llama_tp_plan",
        )


RULE = Rule(
    code="PL301",
    name="tensor-parallel-without-plan",
    severity=Severity.ERROR,
    summary="Tensor parallelism is on, and no plan says which matrices to divide.",
    why="torchtune's distributed recipe raises `Tensor Parallel plan needs to be provided` on every rank.",
    instead="`tensor_parallel_plan: {_component_: torchtune.models.llama3.base_llama_tp_plan}`, or the plan of another "
    "model.",
    sources=(Source(title="torchtune 0.6.1", where="recipes/full_finetune_distributed.py, __init__"),),
    find=find,
    dialects=("torchtune",),
)
