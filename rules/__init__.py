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
    """Code and name of a rule, and the dialects that it applies to, separated by spaces; empty for all."""

    code: str
    name: str
    dialects: str = ""


# A code's letters say what it is about: KEY keys, RC recomputation, OF offload, AT attention, PK packing and length, PL
# parallelism, LO low-rank adapters, LS loss and logits, OP optimizer state, PR precision, AL allocator, EV evaluation,
# KV the cache of inference, EST what the estimator finds.
RULES: tuple[RuleEntry, ...] = (
    RuleEntry("KEY001", "misspelt-key"),
    RuleEntry("KEY002", "unknown-key"),
    RuleEntry("KEY003", "rejected-key"),
    RuleEntry("KEY004", "removed-key"),
    RuleEntry("KEY005", "removed-key-dropped"),
    RuleEntry("KEY006", "renamed-key"),
    RuleEntry("KEY007", "invalid-value"),
    RuleEntry("KEY008", "repeated-key"),
    RuleEntry("KEY101", "refused-key", "axolotl"),
    RuleEntry("KEY102", "dormant-key", "axolotl llamafactory"),
    RuleEntry("KEY103", "plugin-key-without-plugin", "axolotl"),
    RuleEntry("KEY104", "unloadable-plugin", "axolotl"),
    RuleEntry("RC101", "refused-selective-checkpointing", "axolotl"),
    RuleEntry("OF101", "activation-offloading-without-checkpointing", "axolotl"),
    RuleEntry("OF102", "disk-offload-that-stays-in-memory", "axolotl"),
    RuleEntry("AT101", "attention-set-twice", "axolotl"),
    RuleEntry("AT102", "unknown-attention-implementation", "axolotl"),
    RuleEntry("PK103", "packing-with-preference-data", "axolotl"),
    RuleEntry("PK104", "refused-batch-flattening", "axolotl"),
    RuleEntry("PL101", "unusable-context-parallelism", "axolotl"),
    RuleEntry("LS101", "competing-loss-kernels", "axolotl"),
    RuleEntry("LO101", "quantization-without-matching-adapter", "axolotl"),
    RuleEntry("LO102", "four-bits-without-qlora", "axolotl"),
    RuleEntry("LO103", "refused-lora-kernels", "axolotl"),
    RuleEntry("EST001", "predicted-out-of-memory"),
    RuleEntry("EST002", "needless-checkpointing"),
    RuleEntry("EST003", "unused-batch-headroom"),
    RuleEntry("EST004", "recompute-beside-full-logits"),
    RuleEntry("SUP001", "unused-suppression"),
    RuleEntry("SUP002", "malformed-suppression"),
)


def load_rule(entry: RuleEntry) -> "Rule":
    """The rule of an entry."""
    rule: Rule = import_module(f"planner.rules.{entry.name.replace('-', '_')}").RULE
    return rule


def rules_for(dialect: str) -> Iterator[RuleEntry]:
    """The rules that apply to a dialect."""
    return (entry for entry in RULES if not entry.dialects or dialect in entry.dialects.split())
