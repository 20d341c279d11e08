"""GaLore, APOLLO and BAdam together, or with what they exclude."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.diagnostics import Report, Rule, Severity, Source

_OPTIMIZERS = ("use_galore", "use_apollo", "use_badam")
_WITHOUT_DEEPSPEED = ("use_galore", "use_apollo")


def find(config: Config) -> Iterator[Report]:
    """A report for each thing that LLaMA-Factory refuses beside the first of these that is on."""
    on = [setting for key in _OPTIMIZERS if (setting := config.on(key))]
    if not on:
        return
    first, *others = on
    for other in others:
        yield report(
            other.at_key,
            f"LLaMA-Factory takes one of GaLore, APOLLO and BAdam, and {first.key} is on too",
            help="remove one of the two",
            related=[(first, "also on")],
        )
    kind = config.get("finetuning_type")
    if config.value("finetuning_type") == "lora":
        yield report(
            first.at_key,
            f"LLaMA-Factory refuses {first.key} with finetuning_type: lora" + ("" if kind else ", the default"),
            help="set finetuning_type: full",
            related=[(kind, "the kind of fine-tuning")] if kind else [],
        )
    deepspeed = config.get("deepspeed")
    if first.key in _WITHOUT_DEEPSPEED and deepspeed is not None and deepspeed.value:
        yield report(
            first.at_key,
            f"LLaMA-Factory refuses {first.key} with DeepSpeed, which has its own optimizers",
            help="remove one of the two",
            related=[(deepspeed, "DeepSpeed")],
        )


RULE = Rule(
    code="OP102",
    name="refused-low-memory-optimizer",
    severity=Severity.ERROR,
    summary="GaLore, APOLLO or BAdam with each other, with LoRA, or under DeepSpeed.",
    why="LLaMA-Factory checks these pairs before it loads the model, and ends.",
    instead="One of them, with `finetuning_type: full`.",
    sources=(
        Source(title="LLaMA-Factory 0.9.5", where="llamafactory/hparams/finetuning_args.py, __post_init__"),
        Source(title="LLaMA-Factory 0.9.5", where="llamafactory/hparams/parser.py, get_train_args"),
    ),
    find=find,
    dialects=("llamafactory",),
)
