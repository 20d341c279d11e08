"""A micro-batch's budget of tokens that is smaller than one sequence may be."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.diagnostics import Report, Rule, Severity, Source

_ACTOR = "actor_rollout_ref.actor"


def find(config: Config) -> Iterator[Report]:
    """A report where prompt and response together may be longer than the actor's budget of tokens."""
    budget = config.get(f"{_ACTOR}.ppo_max_token_len_per_gpu")
    lengths = [config.get(f"data.max_{part}_length") for part in ("prompt", "response")]
    if budget is None or not isinstance(budget.value, int) or config.on(f"{_ACTOR}.use_dynamic_bsz") is None:
        return
    ranks = _ranks(config)
    known = [setting for setting in lengths if setting is not None and isinstance(setting.value, int)]
    if ranks is None or len(known) < len(lengths):
        return
    total = sum(int(str(setting.value)) for setting in known)
    if budget.value * ranks < total:
        over = f" x {ranks} ranks" if ranks > 1 else ""
        yield report(
            budget,
            f"a micro-batch may have {budget.value:,} tokens{over}, and one sequence {total:,}: verl asserts that the "
            "longest fits, in the midst of training",
            help=f"set it to {-(-total // ranks)} or more",
            related=[(setting, f"{setting.value:,} tokens") for setting in known],
        )


def _ranks(config: Config) -> int | None:
    """How many ranks share a sequence; None where that is not known."""
    for key in (
        "ulysses_sequence_parallel_size",
        "fsdp_config.ulysses_sequence_parallel_size",
        "megatron.context_parallel_size",
    ):
        setting = config.get(f"{_ACTOR}.{key}")
        if setting is not None:
            return setting.value if isinstance(setting.value, int) else None
    return 1


RULE = Rule(
    code="PK401",
    name="token-budget-below-sequence",
    severity=Severity.ERROR,
    summary="With dynamic batches, the actor's budget of tokens is smaller than the longest prompt and response "
    "together.",
    why="verl fills micro-batches up to `ppo_max_token_len_per_gpu` tokens, times the ranks that share a sequence, and "
    "asserts that the longest sequence fits in one. The run stops at the first that does not: before 0.7 at once, as "
    "rows were padded to the full length, since then when a response grows that long.",
    instead="A budget of at least `data.max_prompt_length + data.max_response_length`, divided by the ranks that "
    "share a sequence; twice that is verl's advice.",
    sources=(
        Source(title="verl 0.9.1", where="verl/utils/seqlen_balancing.py: rearrange_micro_batches"),
        Source(title="verl 0.5.0", where="verl/workers/actor/dp_actor.py"),
    ),
    find=find,
    dialects=("verl",),
)
