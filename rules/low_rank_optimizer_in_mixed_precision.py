"""GaLore or APOLLO, which save optimizer state, beside mixed precision, which takes it back."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.diagnostics import Report, Rule, Severity, Source


def find(config: Config) -> Iterator[Report]:
    """A report where such an optimizer is on and parameters are not kept in bfloat16."""
    optimizer = config.on("use_galore") or config.on("use_apollo")
    if optimizer is None or config.on("pure_bf16"):
        return
    mixed = config.on("bf16") or config.on("fp16")
    yield report(
        optimizer,
        f"{optimizer.key} without pure_bf16 keeps parameters and their gradients in float32, 8 bytes for each "
        "parameter instead of 4: more than its low-rank state saves",
        help="set pure_bf16: true, and remove bf16 or fp16",
        related=[(mixed, "mixed precision")] if mixed else [],
    )


RULE = Rule(
    code="OP101",
    name="low-rank-optimizer-in-mixed-precision",
    severity=Severity.WASTE,
    summary="GaLore or APOLLO is on, and parameters are not in bfloat16.",
    why="These optimizers project gradients to keep little state for all parameters. In mixed precision, parameters "
    "and gradients are float32, 4 bytes more for each parameter than in bfloat16, twice what the state of 8-bit Adam "
    "takes. LLaMA-Factory warns of it in its log.",
    instead="`pure_bf16: true`.",
    sources=(Source(title="LLaMA-Factory 0.9.5", where="llamafactory/hparams/parser.py, get_train_args"),),
    find=find,
    dialects=("llamafactory",),
)
