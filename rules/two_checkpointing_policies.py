"""Both names of FSDP's checkpointing policy, of which Lightning takes one."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.diagnostics import Report, Rule, Severity, Source

_ARGUMENTS = "trainer.strategy.init_args"


def find(config: Config) -> Iterator[Report]:
    """A report where FSDPStrategy gets the old argument and the new one."""
    old, new = (
        config.get(f"{_ARGUMENTS}.activation_checkpointing"),
        config.get(f"{_ARGUMENTS}.activation_checkpointing_policy"),
    )
    if old is None or new is None or old.value is None or new.value is None:
        return
    yield report(
        old.at_key,
        "activation_checkpointing and activation_checkpointing_policy are the same thing, and only one may be set",
        help="remove activation_checkpointing, which is deprecated",
        related=[(new.at_key, "the newer name")],
    )


RULE = Rule(
    code="RC304",
    name="two-checkpointing-policies",
    severity=Severity.ERROR,
    summary="Lightning's FSDPStrategy gets both arguments that say what to checkpoint.",
    why="Lightning raises `You cannot set both`.",
    instead="`activation_checkpointing_policy` alone.",
    sources=(Source(title="Lightning 2.6.6", where="lightning/fabric/strategies/fsdp.py"),),
    find=find,
    dialects=("lightning",),
)
