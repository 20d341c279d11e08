"""fsdp_config is given, and fsdp, which makes it count, is not."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.configs.sharding import fsdp_words
from planner.diagnostics import Report, Rule, Severity, Source

# Before, some of its keys counted where a launcher had switched FSDP on. Source: trainer.py of transformers 5.8.0 and
# 5.11.0, the releases on both sides that were read.
_UNREAD_SINCE = (5, 11)


def find(config: Config) -> Iterator[Report]:
    """A report where fsdp_config has something in it and FSDP is off."""
    setting = config.get("fsdp_config")
    if setting is None or not setting.value or fsdp_words(config) or config.versions["transformers"] < _UNREAD_SINCE:
        return
    switch = config.get("fsdp")
    yield report(
        setting.at_key,
        "fsdp_config does nothing: " + ("fsdp is not set" if switch is None else "fsdp is off"),
        help="add fsdp: true, or remove fsdp_config; with accelerate launch, its own config says how to shard",
        related=[(switch, "off here")] if switch is not None else [],
    )


RULE = Rule(
    code="PL206",
    name="fsdp-config-without-fsdp",
    severity=Severity.NO_OP,
    summary="fsdp_config is given without fsdp.",
    why="TrainingArguments read fsdp_config only where fsdp is on. Without it, every GPU holds the whole model, its "
    "gradients and its optimizer state.",
    instead="`fsdp: true`; before Transformers 5.11, `fsdp: full_shard auto_wrap`.",
    sources=(Source(title="transformers 5.24", where="src/transformers/training_args.py: _process_fsdp_args"),),
    find=find,
    dialects=("transformers", "trl"),
)
