"""Context parallelism without the attention and the batch that it works with."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.configs.facts import Attention
from planner.diagnostics import Report, Rule, Severity, Source


def find(config: Config) -> Iterator[Report]:
    """A report for another attention than flash, and one for packed batches of several rows."""
    degree = config.first("context_parallel_size", "sequence_parallel_degree", "dist_config.cp_size")
    if degree is None or type(degree.value) is not int or degree.value <= 1 or config.on("use_glm_dsa_kernels"):
        return
    attention = config.facts.attention
    if attention is None or attention.value is not Attention.FLASH:
        yield report(
            degree,
            f"{config.dialect.framework} refuses {degree.key}: {degree.value} without flash attention, which it needs",
            help=f"set {_ATTENTION_KEY[config.dialect.name]}: flash_attention_2",
            related=[(attention.setting, "the attention")] if attention and attention.setting else [],
        )
    rows, packing = config.get("micro_batch_size"), config.on("sample_packing")
    if packing is not None and rows is not None and type(rows.value) is int and rows.value > 1:
        yield report(
            rows,
            f"axolotl refuses micro_batch_size: {rows.value} with sample_packing and {degree.key}: ring attention "
            "takes one packed row",
            help=f"set micro_batch_size: 1 and multiply sequence_len by {rows.value} for rows of as many tokens",
            related=[(packing, "rows are packed"), (degree, "sequences are divided")],
        )


_ATTENTION_KEY = {"axolotl": "attn_implementation", "llamafactory_v1": "flash_attn"}

RULE = Rule(
    code="PL101",
    name="unusable-context-parallelism",
    severity=Severity.ERROR,
    summary="Context parallelism without flash attention, or with packed batches of several rows.",
    why="axolotl's context parallelism is ring attention over the flash attention kernel, and the variant for packed "
    "rows takes one row. axolotl checks both before training.",
    instead="`attn_implementation: flash_attention_2`, and `micro_batch_size: 1` with packing.",
    sources=(
        Source(title="axolotl 0.19.0", where="utils/schemas/validation.py, check_context_parallel_size"),
        Source(title="LLaMA-Factory 0.9.5", where="llamafactory/v1/core/base_trainer.py, BaseTrainer"),
    ),
    find=find,
    dialects=("axolotl", "llamafactory_v1"),
)
