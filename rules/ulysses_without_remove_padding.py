"""verl divides sequences among ranks only where their padding is removed."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.diagnostics import Report, Rule, Severity, Source

_MODELS = (("actor_rollout_ref.actor", "actor_rollout_ref.model"), ("critic", "critic.model"))


def find(config: Config) -> Iterator[Report]:
    """A report where sequences are to be divided and keep their padding."""
    for owner, model in _MODELS:
        degree = config.get(f"{owner}.ulysses_sequence_parallel_size")
        padding = config.get(f"{model}.use_remove_padding")
        if degree is None or padding is None or not isinstance(degree.value, int):
            continue
        if degree.value > 1 and padding.value is False:
            yield report(
                padding,
                "Ulysses sequence parallelism works on rows without padding: verl refuses to start with padding kept",
                help=f"set {model}.use_remove_padding to true",
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
