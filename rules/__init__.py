"""The lint rules: `RULES` names every one by hand, so that reading one module shows all there are.

A rule's module is its name with underscores, and is imported only when a file of its dialect is checked: `planner lint`
runs before each commit. A test holds each entry against its module.
"""

from collections.abc import Iterator
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
# parallelism, LS loss and logits, OP optimizer state, PR precision, AL allocator, EV evaluation, KV the cache of
# inference, EST what the estimator finds.
RULES: tuple[RuleEntry, ...] = (
    RuleEntry("KEY001", "misspelt-key"),
    RuleEntry("KEY002", "unknown-key"),
    RuleEntry("KEY003", "rejected-key"),
    RuleEntry("KEY004", "removed-key"),
    RuleEntry("KEY005", "removed-key-dropped"),
    RuleEntry("KEY006", "renamed-key", opt_in=True),
    RuleEntry("KEY007", "invalid-value"),
    RuleEntry("KEY008", "repeated-key"),
    RuleEntry("OF101", "activation-offloading-without-checkpointing", "axolotl torchtune planner_spec"),
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
    import json
    from pathlib import Path

    examples = json.loads((Path(__file__).parent / "examples.json").read_text(encoding="utf-8"))
    return Example(**examples[name])


def load_rule(entry: RuleEntry) -> "Rule":
    """The rule of an entry."""
    rule: Rule = import_module(f"planner.rules.{entry.name.replace('-', '_')}").RULE
    return rule


def rules_for(dialect: str) -> Iterator[RuleEntry]:
    """The rules that apply to a dialect."""
    return (entry for entry in RULES if not entry.dialects or dialect in entry.dialects.split())
