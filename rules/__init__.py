"""The lint rules: `RULES` names every one by hand, so that reading one module shows all there are.

A rule's module is its name with underscores, and is imported only when a file of its dialect is checked: `planner lint`
runs before each commit. A test holds each entry against its module.
"""

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from planner.diagnostics import Rule


class RuleEntry(NamedTuple):
    """What must be known of a rule to know whether it runs, without importing it: as in `planner.diagnostics.Rule`.

    Dialects are separated by spaces; empty for all.
    """

    code: str
    name: str
    dialects: str = ""
    opt_in: bool = False
    needs_device: bool = False


# A code's letters say what it is about: KEY keys, RC recomputation, OF offload, AT attention, PK packing and length, PL
# parallelism, LO low-rank adapters, LS loss and logits, OP optimizer state, PR precision, AL allocator, EV evaluation,
# KV the cache of inference, EST what the estimator finds.
RULES: tuple[RuleEntry, ...] = (
    RuleEntry("KEY001", "misspelt-key"),
    RuleEntry("KEY002", "unknown-key"),
    RuleEntry("KEY003", "rejected-key"),
    RuleEntry("KEY004", "removed-key"),
    RuleEntry("KEY005", "removed-key-dropped"),
    RuleEntry("KEY006", "renamed-key", opt_in=True),
    RuleEntry("KEY007", "invalid-value"),
    RuleEntry("KEY008", "repeated-key"),
    RuleEntry("KEY009", "removed-key-of-older-releases"),
    RuleEntry("OF101", "activation-offloading-without-checkpointing", "axolotl torchtune planner_spec"),
    RuleEntry("KEY101", "refused-key", "axolotl"),
    RuleEntry("KEY102", "dormant-key", "axolotl llamafactory"),
    RuleEntry("KEY103", "plugin-key-without-plugin", "axolotl"),
    RuleEntry("KEY104", "unloadable-plugin", "axolotl"),
    RuleEntry("RC101", "refused-selective-checkpointing", "axolotl"),
    RuleEntry("OF102", "disk-offload-that-stays-in-memory", "axolotl"),
    RuleEntry("AT101", "attention-set-twice", "axolotl"),
    RuleEntry("AT102", "unknown-attention-implementation", "axolotl"),
    RuleEntry("PK101", "packing-without-varlen-attention", "axolotl llamafactory"),
    RuleEntry("PK102", "padding-to-full-length", "axolotl", opt_in=True),
    RuleEntry("PK103", "packing-with-preference-data", "axolotl llamafactory"),
    RuleEntry("PK104", "refused-batch-flattening", "axolotl llamafactory_v1"),
    RuleEntry("PK105", "neat-packing-of-several-rows", "llamafactory"),
    RuleEntry("PK106", "packed-documents-not-kept-apart", "axolotl"),
    RuleEntry("PL101", "unusable-context-parallelism", "axolotl llamafactory_v1"),
    RuleEntry("PL102", "refused-under-zero-3", "llamafactory"),
    RuleEntry("PL103", "four-bit-loading-on-one-rank", "axolotl"),
    RuleEntry("PL104", "tensor-parallelism-with-liger", "axolotl"),
    RuleEntry("LS101", "competing-loss-kernels", "axolotl"),
    RuleEntry("LS102", "full-logits", "axolotl llamafactory", opt_in=True),
    RuleEntry("OP101", "low-rank-optimizer-in-mixed-precision", "llamafactory"),
    RuleEntry("OP102", "refused-low-memory-optimizer", "llamafactory"),
    RuleEntry("LO101", "quantization-without-matching-adapter", "axolotl llamafactory"),
    RuleEntry("LO102", "four-bits-without-qlora", "axolotl"),
    RuleEntry("LO103", "refused-lora-kernels", "axolotl"),
    RuleEntry("RC102", "checkpointing-switch-that-is-not-read", "llamafactory"),
    RuleEntry("RC301", "checkpointing-switches-that-cancel", "torchtune"),
    RuleEntry("OP301", "optimizer-in-backward-with-accumulation", "torchtune planner_spec"),
    RuleEntry("OP302", "optimizer-in-backward-with-clipping", "torchtune"),
    RuleEntry("OP303", "offloaded-gradients-with-accumulation", "torchtune"),
    RuleEntry("PK301", "packing-without-length", "torchtune"),
    RuleEntry("PR301", "float16-parameters", "torchtune"),
    RuleEntry("OF301", "activation-offloading-without-gpu", "torchtune"),
    RuleEntry("PL301", "tensor-parallel-without-plan", "torchtune"),
    RuleEntry("RC302", "memory-budget-without-compile", "torchtitan"),
    RuleEntry("RC303", "checkpointing-option-of-another-mode", "torchtune torchtitan", opt_in=True),
    RuleEntry("PL302", "async-tensor-parallel-without-compile", "torchtitan"),
    RuleEntry("PL303", "sequence-not-divisible-among-ranks", "torchtitan"),
    RuleEntry("PL304", "pipeline-microbatch-does-not-divide", "torchtitan"),
    RuleEntry("PL305", "fewer-microbatches-than-stages", "torchtitan"),
    RuleEntry("OP304", "optimizer-in-backward-with-model-parallelism", "torchtitan"),
    RuleEntry("OP305", "clipping-after-the-optimizer", "torchtitan"),
    RuleEntry("PL306", "replication-beside-model-parallelism", "torchtitan"),
    RuleEntry("PL307", "quantization-on-several-devices", "litgpt"),
    RuleEntry("PR302", "quantization-with-mixed-precision", "litgpt"),
    RuleEntry("PK302", "batch-smaller-than-its-micro-batches", "litgpt"),
    RuleEntry("PK303", "global-batch-rounded-down", "litgpt"),
    RuleEntry("PK304", "unbounded-sequence-length", "torchtune litgpt", opt_in=True),
    RuleEntry("PL308", "removed-strategy", "lightning"),
    RuleEntry("RC304", "two-checkpointing-policies", "lightning"),
    RuleEntry("OP306", "clipping-by-norm-under-fsdp", "lightning", opt_in=True),
    RuleEntry("PL309", "search-for-unused-parameters", "lightning", opt_in=True),
    RuleEntry("PL310", "fsdp-without-gpu", "lightning"),
    RuleEntry("RC201", "checkpointing-twice-under-fsdp", "transformers trl"),
    RuleEntry("PL201", "deepspeed-contradicts-arguments", "transformers trl llamafactory"),
    RuleEntry("PL202", "batch-sizes-do-not-multiply", "deepspeed"),
    RuleEntry("PR201", "two-half-precisions", "transformers trl llamafactory deepspeed"),
    RuleEntry("OP201", "bitsandbytes-optimizer-under-fsdp2", "transformers trl llamafactory"),
    RuleEntry("AL201", "batch-search-that-is-refused", "transformers trl llamafactory"),
    RuleEntry("EV201", "best-model-without-matching-evaluation", "transformers trl llamafactory"),
    RuleEntry("PK201", "padding-free-with-max-length", "trl"),
    RuleEntry("PL203", "deepspeed-file-beside-settings", "accelerate"),
    RuleEntry("PL208", "efficient-loading-without-sync", "accelerate"),
    RuleEntry("OF202", "checkpoint-offload-without-checkpointing", "accelerate"),
    RuleEntry("RC202", "deepspeed-checkpointing-unread", "deepspeed"),
    RuleEntry("OF203", "parameter-offload-below-stage-3", "deepspeed accelerate"),
    RuleEntry("KEY201", "auto-that-nothing-fills", "deepspeed"),
    RuleEntry("PL204", "settings-of-another-launcher", "accelerate"),
    RuleEntry("PL205", "fsdp-key-of-the-other-version", "accelerate transformers_fsdp"),
    RuleEntry("RC203", "checkpointing-arguments-without-checkpointing", "transformers trl"),
    RuleEntry("PL206", "fsdp-config-without-fsdp", "transformers trl"),
    RuleEntry("RC204", "cache-with-checkpointing", "transformers trl"),
    RuleEntry("OF204", "deepcompile-option-without-deepcompile", "deepspeed"),
    RuleEntry("EV202", "evaluation-batch-of-eight", "transformers trl llamafactory"),
    RuleEntry("EV203", "predictions-held-on-device", "transformers trl llamafactory", opt_in=True),
    RuleEntry("OF205", "offload-from-pageable-memory", "deepspeed"),
    RuleEntry("OP202", "large-deepspeed-buckets", "deepspeed", opt_in=True),
    RuleEntry("PR202", "frozen-weights-in-float32", "trl"),
    RuleEntry("PR203", "full-precision-training", "transformers trl", opt_in=True),
    RuleEntry("PL207", "fsdp-without-wrapping", "accelerate transformers_fsdp"),
    RuleEntry("KEY203", "removed-training-argument", "transformers trl", opt_in=True),
    RuleEntry("KEY202", "fraction-where-an-integer-belongs", "deepspeed"),
    RuleEntry("PL210", "path-in-place-of-settings", "accelerate"),
    RuleEntry("PL209", "option-that-fsdp2-refuses", "transformers trl accelerate"),
    RuleEntry("RC205", "gradient-checkpointing-beside-fsdp", "transformers trl", opt_in=True),
    RuleEntry(
        "PL401",
        "sequence-parallel-without-tensor-parallel",
        "megatron megatron_bridge nemo nemo_automodel ms_swift gpt_neox accelerate",
    ),
    RuleEntry("PL402", "context-parallel-splits-sequence-unevenly", "megatron megatron_bridge nemo"),
    RuleEntry("PL403", "pipeline-splits-layers-unevenly", "megatron"),
    RuleEntry("PL404", "interleaved-schedule-without-pipeline", "megatron"),
    RuleEntry("PL405", "fsdp-with-one-device-connection", "megatron megatron_bridge ms_swift"),
    RuleEntry("PL406", "device-connections-unset", "megatron", opt_in=True),
    RuleEntry("PL407", "ulysses-without-remove-padding", "verl"),
    RuleEntry("PL408", "pipeline-without-schedule", "nemo_automodel"),
    RuleEntry("PL409", "pipeline-settings-without-pipeline", "nemo_automodel", opt_in=True),
    RuleEntry("RC401", "full-recompute-incomplete", "megatron megatron_bridge nemo ms_swift verl"),
    RuleEntry("RC402", "selective-recompute-with-layers", "megatron megatron_bridge nemo ms_swift verl"),
    RuleEntry("RC403", "recompute-setting-without-effect", "megatron megatron_bridge nemo ms_swift verl"),
    RuleEntry("RC404", "fused-attention-recomputed", "megatron megatron_bridge ms_swift verl"),
    RuleEntry("RC405", "saved-activations-not-distributable", "megatron"),
    RuleEntry("RC406", "recompute-switch-unread-by-launcher", "accelerate"),
    RuleEntry("RC407", "selective-recompute-with-default-method", "accelerate"),
    RuleEntry("OF401", "cpu-offloading-beside-recompute", "megatron megatron_bridge nemo verl"),
    RuleEntry("OF402", "fine-grained-offloading-without-modules", "megatron megatron_bridge verl"),
    RuleEntry("AT401", "attention-holds-scores", "megatron"),
    RuleEntry("AT402", "flash-flag-without-effect", "megatron"),
    RuleEntry("OP401", "optimizer-offload-without-precision-aware", "megatron"),
    RuleEntry("LS401", "transformer-engine-cross-entropy", "megatron"),
    RuleEntry("PK401", "token-budget-below-sequence", "verl"),
    RuleEntry("KV401", "cache-bytes-override-utilization", "vllm"),
    RuleEntry("KV402", "batched-tokens-below-context", "vllm verl"),
    RuleEntry("KV403", "false-dropped-from-yaml", "vllm"),
    RuleEntry("KV404", "rollout-cache-kept-in-training", "verl"),
    RuleEntry("KV405", "fp8-cache-without-scales", "sglang", opt_in=True),
    RuleEntry("AL401", "invalid-allocator-setting"),
    RuleEntry("AL402", "misspelt-allocator-variable"),
    RuleEntry("AL403", "split-limit-with-expandable-segments"),
    RuleEntry("AL404", "expandable-segments-with-cuda-graphs", "megatron"),
    RuleEntry("RC305", "checkpointing-option-without-checkpointing", "gpt_neox"),
    RuleEntry("RC306", "contiguous-checkpoints-without-partitioning", "gpt_neox"),
    RuleEntry("RC307", "partitioned-activations-without-model-parallelism", "gpt_neox", opt_in=True),
    RuleEntry("RC308", "synchronized-checkpoints", "gpt_neox", opt_in=True),
    RuleEntry("PL311", "sharded-gradients-with-pipeline", "gpt_neox"),
    RuleEntry("PK305", "sequence-beyond-position-embeddings", "gpt_neox"),
    RuleEntry("AT301", "attention-for-other-layer-count", "gpt_neox"),
    RuleEntry("PR303", "float16-loss-without-float16", "gpt_neox"),
    RuleEntry("KEY301", "invalid-model-spec", "planner_spec"),
    RuleEntry("PR304", "removed-model-converter", "torchtitan"),
    RuleEntry("PR305", "float8-without-compile", "torchtitan"),
    RuleEntry("EST001", "predicted-out-of-memory", needs_device=True),
    RuleEntry("EST002", "needless-checkpointing", needs_device=True),
    RuleEntry("EST003", "unused-batch-headroom", opt_in=True, needs_device=True),
    RuleEntry("EST004", "recompute-beside-full-logits", needs_device=True),
    RuleEntry("SUP001", "unused-suppression"),
    RuleEntry("SUP002", "malformed-suppression"),
)


class Example(NamedTuple):
    """A config that a rule objects to: its file's name and text, and what `planner lint` says of it."""

    file: str
    text: str
    findings: str


def load_example(name: str) -> Example:
    """The example of a rule. They are fixtures of the tests, brought here by ``python -m dev.rules_page``."""
    return Example(**_examples()[name])


@cache
def _examples() -> dict[str, dict[str, str]]:
    import json
    import os

    with open(os.path.join(os.path.dirname(__file__), "examples.json"), encoding="utf-8") as file:
        examples: dict[str, dict[str, str]] = json.load(file)
    return examples


@cache
def load_rule(entry: RuleEntry) -> "Rule":
    """The rule of an entry."""
    rule: Rule = import_module(f"planner.rules.{entry.name.replace('-', '_')}").RULE
    return rule


@cache
def rules_for(dialect: str) -> tuple[RuleEntry, ...]:
    """The rules that apply to a dialect."""
    return tuple(entry for entry in RULES if not entry.dialects or dialect in entry.dialects.split())
