"""Arguments of checkpointing are given, and checkpointing is off."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.configs.facts import Checkpointing
from planner.diagnostics import Report, Rule, Severity, Source

_KEYS = ("gradient_checkpointing_kwargs", "activation_checkpointing_kwargs")


def find(config: Config) -> Iterator[Report]:
    """A report where checkpointing is left off, or switched off, with arguments beside it."""
    checkpointing, arguments = config.facts.checkpointing, config.first(*_KEYS)
    if checkpointing is None or checkpointing.value is not Checkpointing.NONE or arguments is None:
        return
    if not isinstance(arguments.value, dict) or not arguments.value or checkpointing.setting is not None:
        return  # switched off by hand: the arguments are there for the day it is switched on
    switch = arguments.key.removesuffix("_kwargs")
    yield report(
        arguments.at_key,
        f"{arguments.key} does nothing: {switch} is not set, and is off by default",
        help=f"add {switch}: true, or remove {arguments.key}",
    )


RULE = Rule(
    code="RC203",
    name="checkpointing-arguments-without-checkpointing",
    severity=Severity.NO_OP,
    summary="gradient_checkpointing_kwargs are given, and gradient_checkpointing is not.",
    why="The arguments are read only when checkpointing is switched on. All activations are kept.",
    instead="`gradient_checkpointing: true` beside them.",
    sources=(Source(title="transformers 5.24", where="src/transformers/trainer.py: args.activation_checkpointing"),),
    find=find,
    dialects=("transformers", "trl"),
)
