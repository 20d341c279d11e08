"""Transformers refuses to checkpoint both by itself and through FSDP."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.configs.sharding import fsdp_setting, fsdp_words, is_true
from planner.diagnostics import Report, Rule, Severity, Source


def find(config: Config) -> Iterator[Report]:
    """A report where fsdp_config asks for checkpointing and the training arguments do too, or do by default."""
    by_fsdp = fsdp_setting(config, "activation_checkpointing")
    if by_fsdp is None or not is_true(by_fsdp.value) or not fsdp_words(config):
        return
    own = next((found for key in _KEYS if (found := config.get(key)) is not None and found.value is not None), None)
    if own is not None and own.value is True:
        yield report(
            own,
            f"{own.key} and fsdp_config.activation_checkpointing are both on, which {_WHO} refuses",
            help=f"set {own.key}: false, and leave it to FSDP",
            related=[(by_fsdp, "FSDP checkpoints here")],
        )
    elif own is None and config.value("gradient_checkpointing") is True:
        part = config.get("fsdp_config")
        assert part is not None  # by_fsdp is in it
        yield report(
            part.at_key,
            f"{config.dialect.framework} checkpoints by default, and {_WHO} refuses to do it together with FSDP",
            help="add gradient_checkpointing: false",
            related=[(by_fsdp, "FSDP checkpoints here")],
        )


_WHO = "Transformers' Trainer"
_KEYS = ("activation_checkpointing", "gradient_checkpointing")

RULE = Rule(
    code="RC201",
    name="checkpointing-twice-under-fsdp",
    severity=Severity.ERROR,
    summary="Checkpointing is on in the training arguments and in fsdp_config.",
    why="The Trainer raises an error when it is made, after the model is loaded. TRL's trainers checkpoint unless told "
    "not to, so there fsdp_config alone is enough.",
    instead="`gradient_checkpointing: false`, and `activation_checkpointing: true` in fsdp_config.",
    sources=(
        Source(title="transformers 5.24", where="src/transformers/trainer.py: create_accelerator_and_postprocess"),
        Source(title="TRL 1.16", where="trl/trainer/base_config.py: gradient_checkpointing"),
    ),
    find=find,
    dialects=("transformers", "trl"),
)
