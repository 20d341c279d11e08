"""A micro-batch's budget of tokens that is smaller than one sequence may be."""

from collections.abc import Iterator

from planner.configs.config import Config, Setting, report
from planner.diagnostics import Report, Rule, Severity, Source

_ACTOR = "actor_rollout_ref.actor"


def find(config: Config) -> Iterator[Report]:
    """A report where prompt and response together may be longer than the actor's budget of tokens."""
    budget = config.get(f"{_ACTOR}.ppo_max_token_len_per_gpu")
    ranks, tokens = _ranks(config), _whole(budget)
    if budget is None or tokens is None or ranks is None or config.on(f"{_ACTOR}.use_dynamic_bsz") is None:
        return
    prompt, response = config.get("data.max_prompt_length"), config.get("data.max_response_length")
    lengths = [
        (setting, length) for setting in (prompt, response) if setting and (length := _whole(setting)) is not None
    ]
    total = sum(length for _, length in lengths)
    if len(lengths) == len((prompt, response)) and tokens * ranks < total:
        over = f" x {ranks} ranks" if ranks > 1 else ""
        yield report(
            budget,
            f"a micro-batch may have {tokens:,} tokens{over}, and one sequence {total:,}: verl asserts that the "
            "longest fits, in the midst of training",
            help=f"set it to {-(-total // ranks)} or more",
            related=[(setting, f"{length:,} tokens") for setting, length in lengths],
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
            return _whole(setting)
    return 1


def _whole(setting: Setting | None) -> int | None:
    """A setting's value, where that is a positive whole number."""
    value = None if setting is None else setting.value
    return value if type(value) is int and value > 0 else None


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
