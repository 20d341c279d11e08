"""verl divides sequences among ranks only where their padding is removed."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.diagnostics import Report, Rule, Severity, Source

_ACTOR = "actor_rollout_ref.actor"
_MODEL = "actor_rollout_ref.model"


def find(config: Config) -> Iterator[Report]:
    """A report where sequences are to be divided and keep their padding."""
    degree, padding = config.get(f"{_ACTOR}.ulysses_sequence_parallel_size"), config.get(f"{_MODEL}.use_remove_padding")
    strategy = config.get(f"{_ACTOR}.strategy")
    if degree is None or padding is None or not isinstance(degree.value, int):
        return
    if strategy is not None and strategy.value not in ("fsdp", "fsdp2"):
        return
    if degree.value > 1 and padding.value is False:
        yield report(
            padding,
            "Ulysses sequence parallelism works on rows without padding: verl refuses to start with padding kept",
            help=f"set {_MODEL}.use_remove_padding to true",
            related=[(degree, f"{degree.value} ranks share a sequence")],
        )


RULE = Rule(
    code="PL407",
    name="ulysses-without-remove-padding",
    severity=Severity.ERROR,
    summary="Ulysses sequence parallelism is on, and use_remove_padding is off.",
    why="verl joins a batch's sequences without padding before it divides them among ranks. Its validation raises a "
    "ValueError where padding is kept. Without padding the run needs less memory, too.",
    instead="`use_remove_padding: true`, or no sequence parallelism.",
    sources=(
        Source(title="verl 0.9.1", where="verl/workers/config/actor.py: FSDPActorConfig.validate"),
        Source(title="verl 0.4.1", where="verl/trainer/ppo/ray_trainer.py: _validate_config"),
    ),
    find=find,
    dialects=("verl",),
)
