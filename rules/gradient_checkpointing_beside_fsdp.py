"""The training arguments checkpoint, and FSDP could do it with one gathering less."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.configs.sharding import fsdp_setting, fsdp_words, is_true
from planner.diagnostics import Report, Rule, Severity, Source


def find(config: Config) -> Iterator[Report]:
    """A report where checkpointing is on in the training arguments and FSDP is on without its own."""
    own, fsdp = config.first("activation_checkpointing", "gradient_checkpointing"), config.get("fsdp")
    by_fsdp = fsdp_setting(config, "activation_checkpointing")
    if own is None or own.value is not True or fsdp is None or not fsdp_words(config):
        return
    if by_fsdp is None or not is_true(by_fsdp.value):
        yield report(
            own,
            f"with FSDP, {own.key} gathers each layer's parameters once more in backward, as Transformers warns",
            help=f"set {own.key}: false and fsdp_config.activation_checkpointing: true",
            related=[(fsdp, "FSDP is on here")],
        )


RULE = Rule(
    code="RC205",
    name="gradient-checkpointing-beside-fsdp",
    severity=Severity.WASTE,
    summary="gradient_checkpointing is on together with FSDP, instead of FSDP's own.",
    why="Transformers warns that recomputing a layer gathers its parameters again. How much that costs depends on the "
    "link, and on the release: newer ones checkpoint within FSDP's hooks. Hence this rule is silent unless asked for.",
    instead="`activation_checkpointing: true` in fsdp_config, and `gradient_checkpointing: false`.",
    sources=(
        Source(title="transformers #30404", where="https://github.com/huggingface/transformers/issues/30404"),
        Source(title="transformers 5.24", where="src/transformers/training_args.py: _process_fsdp_args"),
    ),
    find=find,
    dialects=("transformers", "trl"),
    opt_in=True,
)
