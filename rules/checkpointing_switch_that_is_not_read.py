"""Checkpointing switched off, or set up, by a key that LLaMA-Factory does not go by."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.diagnostics import Report, Rule, Severity, Source


def find(config: Config) -> Iterator[Report]:
    """A report for each key that has no effect on the checkpointing that is, or is not, done."""
    trainer_switch, disabled = config.get("gradient_checkpointing"), config.on("disable_gradient_checkpointing")
    if trainer_switch is not None and trainer_switch.value is True:
        return  # the trainer switches it on a second time, with its own arguments
    if trainer_switch is not None and trainer_switch.value is False and disabled is None:
        yield report(
            trainer_switch,
            "LLaMA-Factory checkpoints all the same: it goes by disable_gradient_checkpointing, which is off, so that "
            "backward runs each block's forward again, about a third more compute",
            help="set disable_gradient_checkpointing: true if the activations fit, or remove the key",
        )
    arguments = config.get("gradient_checkpointing_kwargs")
    if arguments is not None and arguments.value:
        yield report(
            arguments.at_key,
            "LLaMA-Factory does not read gradient_checkpointing_kwargs for the checkpointing that it sets up",
            help="set use_reentrant_gc, which is true unless set",
        )
    if disabled is not None:
        for option in (config.on("use_unsloth_gc"), config.get("use_reentrant_gc")):
            if option is not None:
                yield report(
                    option.at_key,
                    f"{option.key} has no effect: checkpointing is disabled",
                    help="remove disable_gradient_checkpointing, or this key",
                    related=[(disabled, "disabled here")],
                )


RULE = Rule(
    code="RC102",
    name="checkpointing-switch-that-is-not-read",
    severity=Severity.NO_OP,
    summary="Checkpointing is switched off or set up by a key that LLaMA-Factory does not go by.",
    why="LLaMA-Factory checkpoints every block unless `disable_gradient_checkpointing` is on, and takes the kind from "
    "`use_reentrant_gc` and `use_unsloth_gc`. Hugging Face's `gradient_checkpointing: false` passes its parser and "
    "changes nothing: each step computes the forward pass of every block twice.",
    instead="`disable_gradient_checkpointing: true`, and `use_reentrant_gc`.",
    sources=(
        Source(title="LLaMA-Factory 0.9.5", where="llamafactory/model/model_utils/checkpointing.py"),
        Source(title="LLaMA-Factory 0.9.5", where="llamafactory/hparams/model_args.py"),
    ),
    find=find,
    dialects=("llamafactory",),
)
