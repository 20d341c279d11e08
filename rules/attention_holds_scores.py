"""Attention that keeps the whole matrix of scores, where that is large."""

from collections.abc import Iterator

from planner.configs.config import Config, Setting, report
from planner.configs.megatron import CoreSettings, cores
from planner.diagnostics import Report, Rule, Severity, Source

# Half of what a layer keeps at 8,192 tokens of a 7B model; below that a run has other worries.
_LARGE_BYTES = 1_000_000_000
_SCORE_BYTES = 2  # bfloat16; dropout's mask and the softmax of wider kernels come on top


def find(config: Config) -> Iterator[Report]:
    """A report where scores are kept and one layer's are more than a gigabyte."""
    for core in cores(config):
        where = _unfused(core)
        sizes = [core.number(name) for name in ("seq_length", "num_attention_heads", "micro_batch_size")]
        ranks = core.number("tensor_model_parallel_size")
        if where is None or ranks is None or None in sizes:
            continue
        length, heads, rows = (size or 0 for size in sizes)
        scores_bytes = rows * heads * length * length * _SCORE_BYTES // max(ranks, 1)
        if scores_bytes >= _LARGE_BYTES:
            yield report(
                where,
                f"this attention keeps its scores: {scores_bytes / 1e9:.1f} GB in every attention layer "
                f"({rows} x {heads} heads x {length:,}² x {_SCORE_BYTES} bytes, over {ranks} ranks)",
                help="let Transformer Engine choose a fused kernel (auto), or recompute core attention",
            )


def _unfused(core: CoreSettings) -> Setting | None:
    for name, values in (("attention_backend", ("unfused", "local")), ("transformer_impl", ("local",))):
        setting = core.asked(name)
        if setting is not None and setting.value in values and core.recompute[0] == "none":
            return setting
    return None


RULE = Rule(
    code="AT401",
    name="attention-holds-scores",
    severity=Severity.WASTE,
    summary="An unfused attention keeps its matrix of scores for backward, a gigabyte or more in every layer.",
    why="The scores grow with the square of the sequence length and are kept by every layer until its backward. Fused "
    "kernels compute them again in tiles and keep one number a row.",
    instead="`attention_backend: auto`, `flash` or `fused`; where a kernel cannot do what the model needs, selective "
    "recomputation of core attention.",
    sources=(
        Source(title="Megatron-Core 0.19.2", where="megatron/core/transformer/dot_product_attention.py"),
        Source(title="Reducing Activation Recomputation in Large Transformer Models", where="arXiv 2205.05198, eq. 1"),
    ),
    find=find,
    dialects=("megatron",),
)
