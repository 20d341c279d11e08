"""What a run of verl asks for: the facts are the actor's, and those of its rollout."""

from planner.configs.config import Config
from planner.configs.facts import Checkpointing, Fact, Facts, Sharding
from planner.configs.megatron import cores
from planner.linting.dialects import simple_facts
from planner.linting.dialects.megatron import core_facts

_ACTOR = "actor_rollout_ref.actor"


def read(config: Config) -> Facts:
    """The facts of the actor and its rollout."""
    actor = next((core for core in cores(config) if core.prefixes[0].startswith(_ACTOR)), None)
    if actor is not None:
        return Facts(**core_facts(actor))
    facts = simple_facts(config)
    checkpointing = config.get("actor_rollout_ref.model.enable_gradient_checkpointing")
    is_on = config.value("actor_rollout_ref.model.enable_gradient_checkpointing")
    if isinstance(is_on, bool):
        kind = Checkpointing.FULL if is_on else Checkpointing.NONE
        facts["checkpointing"] = Fact(value=kind, setting=checkpointing)
    strategy = config.get(f"{_ACTOR}.strategy")
    if strategy is not None and strategy.value in ("fsdp", "fsdp2"):
        facts["sharding"] = Fact(value=Sharding.PARAMETERS, setting=strategy)
    return Facts(**facts)
