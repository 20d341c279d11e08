"""A prompt that fits in no batch, where prompts are not taken in pieces."""

from collections.abc import Iterator

from planner.configs.config import Config, Setting, report
from planner.diagnostics import Report, Rule, Severity, Source


def find(config: Config) -> Iterator[Report]:
    """A report where a batch may have fewer tokens than a sequence, and prompts are not chunked."""
    prefix = "actor_rollout_ref.rollout." if config.dialect.name == "verl" else ""
    batch, context = config.get(f"{prefix}max_num_batched_tokens"), config.get(f"{prefix}max_model_len")
    chunked = _chunked_off(config, prefix)
    if batch is None or context is None or chunked is None:
        return
    if not (isinstance(batch.value, int) and isinstance(context.value, int)) or batch.value >= context.value:
        return
    yield report(
        batch,
        f"a batch may have {batch.value:,} tokens and a sequence {context.value:,}; without chunked prefill a prompt "
        "has to fit in one batch, and vLLM refuses this",
        help="leave chunked prefill on, or raise max_num_batched_tokens to max_model_len",
        related=[(context, f"{context.value:,} tokens"), (chunked, "chunked prefill is off here")],
    )


def _chunked_off(config: Config, prefix: str) -> Setting | None:
    """The setting that switches chunked prefill off."""
    off = config.get(f"{prefix}enable_chunked_prefill")
    if off is not None and off.value is False:
        # In YAML for vLLM false was dropped before 0.28: another rule says so.
        return None if config.dialect.name == "vllm" and config.target < (0, 28) else off
    return config.on("no_enable_chunked_prefill") if not prefix else None


RULE = Rule(
    code="KV402",
    name="batched-tokens-below-context",
    severity=Severity.ERROR,
    summary="max_num_batched_tokens is below max_model_len, and chunked prefill is off.",
    why="Without chunked prefill a prompt is computed in one batch. vLLM raises a ValueError when it starts, as "
    "prompts longer than a batch could never be served.",
    instead="Chunked prefill, which also bounds the memory of a batch's activations, or a batch as long as the "
    "context.",
    sources=(Source(title="vLLM 0.33.0", where="vllm/config/scheduler.py: SchedulerConfig.verify_max_model_len"),),
    find=find,
    dialects=("vllm", "verl"),
)
