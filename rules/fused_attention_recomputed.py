"""Recomputing attention that a fused kernel computes frees next to nothing."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.configs.facts import Checkpointing
from planner.configs.megatron import cores
from planner.diagnostics import Report, Rule, Severity, Source

_FUSED = ("flash", "fused", "flash_2", "flash_3", "flash_4")


def find(config: Config) -> Iterator[Report]:
    """A report where core attention is recomputed and its kernel is said to be a fused one."""
    for core in cores(config):
        kind, granularity = core.recompute
        backend = core.asked("attention_backend")
        modules = core.get("recompute_modules")
        if kind is not Checkpointing.SELECTIVE or backend is None or backend.value not in _FUSED:
            continue
        if modules is not None and modules.value not in ("core_attn", ["core_attn"]):
            continue
        where = modules or granularity
        if where is not None and (modules is not None or core.is_complete):
            yield report(
                where,
                f"only core attention is recomputed, and the {backend.value} kernel keeps no scores: its forward is "
                "run again to save what the next matrix product keeps anyway",
                help=f"remove it, or set {core.key('recompute_modules')} to what is large, such as layernorm, moe_act "
                "or mlp",
                related=[(backend, "the kernel is chosen here")],
            )


RULE = Rule(
    code="RC404",
    name="fused-attention-recomputed",
    severity=Severity.WASTE,
    summary="Core attention is all that is recomputed, and a fused kernel computes it.",
    why="Recomputing core attention was for the matrix of scores, which unfused attention keeps for backward. Flash "
    "and cuDNN kernels keep queries, keys, values, the output and one number a row: the first three are kept as the "
    "inputs of what is recomputed, and the output as the input of the projection. What is left to save is the number "
    "a row, and each backward pays for attention's forward again. Megatron-Core warns of it itself.",
    instead="No recomputation, or modules that do keep something.",
    sources=(
        Source(
            title="Megatron-Core 0.19.2",
            where="megatron/core/transformer/transformer_config.py: the warning on core_attn in recompute_modules",
        ),
        Source(title="Reducing Activation Recomputation in Large Transformer Models", where="arXiv 2205.05198"),
    ),
    find=find,
    dialects=("megatron", "megatron_bridge", "ms_swift", "verl"),
)
