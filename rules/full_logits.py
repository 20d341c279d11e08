"""Logits of many tokens held at one time, where a loss that works piece by piece is one key away."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.configs.facts import Loss
from planner.diagnostics import Report, Rule, Severity, Source

# The vocabulary of Llama 3, which Qwen's and Gemma's exceed. Source: meta-llama/Meta-Llama-3-8B, config.json.
_VOCABULARY = 128_256
_FLOAT32_BYTES = 4
_LEAST_BYTES = 4_000_000_000  # from which on it is worth a word: a twentieth of an 80 GB card
_REMEDY = {
    "axolotl": "list axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin among the plugins",
    "llamafactory": "set enable_liger_kernel: true",
}


def find(config: Config) -> Iterator[Report]:
    """A report where the logits of a micro-batch are large and computed at once."""
    loss, rows, length = config.facts.loss, config.facts.micro_batch, config.facts.sequence_length
    if loss is None or loss.value is not Loss.FULL or rows is None or length is None:
        return
    where = length.setting or rows.setting
    context = config.facts.context_parallel
    tokens = rows.value * length.value // max(1, context.value if context else 1)
    logits_bytes = tokens * _VOCABULARY * _FLOAT32_BYTES
    if where is None or logits_bytes < _LEAST_BYTES:
        return
    yield report(
        where,
        f"the logits of up to {tokens:,} tokens are held at one time: {logits_bytes / 1e9:.1f} GB as float32 with a "
        f"vocabulary of {_VOCABULARY:,}, and as much again for their gradient",
        help=_REMEDY[config.dialect.name],
    )


RULE = Rule(
    code="LS102",
    name="full-logits",
    severity=Severity.WASTE,
    summary="The logits of a long micro-batch are computed at once, and a fused loss is not switched on.",
    why="Cross entropy on float32 logits holds them and their gradient, tokens × vocabulary × 4 bytes each, and this "
    "often is the peak of the step. Losses that join the last matrix to the cross entropy hold a piece at a time. Not "
    "every model is supported by them, so this is only reported on request.",
    instead="Cut cross entropy or Liger's fused linear cross entropy.",
    sources=(
        Source(title="Cut Your Losses in Large-Vocabulary Language Models", where="https://arxiv.org/abs/2411.09009"),
        Source(title="LLaMA-Factory 0.9.5", where="llamafactory/model/model_utils/liger_kernel.py"),
    ),
    find=find,
    dialects=("axolotl", "llamafactory"),
    opt_in=True,
)
