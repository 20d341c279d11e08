"""An inference engine that keeps its share of the GPU while the same GPU trains."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.diagnostics import Report, Rule, Severity, Source

_ROLLOUT = "actor_rollout_ref.rollout"
_APART = ("async", "one_step_off")  # in names of verl's trainers whose rollouts have GPUs of their own


def find(config: Config) -> Iterator[Report]:
    """A report where the rollout engine shares GPUs with training and does not free its cache."""
    kept = config.get(f"{_ROLLOUT}.free_cache_engine")
    hybrid = config.get("actor_rollout_ref.hybrid_engine")
    command = config.get("$command")
    if kept is None or kept.value is not False or config.get("rollout") is not None:
        return
    if (hybrid is not None and hybrid.value is not True) or (command and any(a in str(command.value) for a in _APART)):
        return
    if config.get("defaults") is not None:  # of Hydra: what it builds on may set the rollout apart
        return
    share, setting = (
        config.number(f"{_ROLLOUT}.gpu_memory_utilization"),
        config.get(f"{_ROLLOUT}.gpu_memory_utilization"),
    )
    if share is not None:
        yield report(
            kept,
            f"the rollout engine keeps up to {share:.0%} of each GPU while the actor trains on the rest",
            help="set free_cache_engine to true: the engine sleeps during training and gives its memory back",
            related=[(setting, "its share")] if setting is not None else [],
        )


RULE = Rule(
    code="KV404",
    name="rollout-cache-kept-in-training",
    severity=Severity.WASTE,
    summary="The rollout engine shares its GPUs with training, and does not free its cache.",
    why="verl's hybrid engine generates and trains on the same GPUs in turns. With `free_cache_engine` the engine "
    "drops its cache and weights when its turn ends; without, `gpu_memory_utilization` of each GPU stays taken, and "
    "activations have to fit beside it.",
    instead="`free_cache_engine: true`, or a smaller `gpu_memory_utilization`.",
    sources=(
        Source(title="verl 0.9.1", where="verl/trainer/config/rollout/rollout.yaml: free_cache_engine"),
        Source(title="verl 0.9.1", where="verl/workers/rollout/vllm_rollout/vllm_async_server.py: sleep"),
    ),
    find=find,
    dialects=("verl",),
)
