"""Packed rows without an attention implementation, which axolotl then does not tell where documents end."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.diagnostics import Report, Rule, Severity, Source


def find(config: Config) -> Iterator[Report]:
    """A report where rows are packed and no attention implementation is chosen."""
    packing = config.on("sample_packing")
    if packing is None or config.facts.attention is not None or config.on("gemma4_hybrid_attn_impl"):
        return
    if config.value("rl") or config.on("use_glm_dsa_kernels"):
        return
    yield report(
        packing,
        "axolotl does not keep packed documents apart while no attention implementation is chosen: each document "
        "attends to those before it in its row",
        help="set attn_implementation: flash_attention_2, or sdpa where that is not installed",
    )


RULE = Rule(
    code="PK106",
    name="packed-documents-not-kept-apart",
    severity=Severity.NO_OP,
    summary="Rows are packed and no attention implementation is chosen, so that documents see each other.",
    why="axolotl leaves the mask out, which tells documents apart, only for implementations that it knows. Without one "
    "it logs a warning among many lines, and the model trains on documents that are no context of each other.",
    instead="`attn_implementation: flash_attention_2`.",
    sources=(
        Source(title="axolotl 0.19.0", where="utils/schemas/validation.py, check_sample_packing_without_attention"),
    ),
    find=find,
    dialects=("axolotl",),
)
