"""A rule as text for a terminal, as Markdown for pages and services, and as plain data."""

from typing import TYPE_CHECKING, Any

from planner.diagnostics import FixSafety, Severity
from planner.reporting.tables import WIDTH, table

if TYPE_CHECKING:
    from collections.abc import Iterable

    from planner.diagnostics import Rule
    from planner.rules import Example

_SEVERITY = {
    Severity.ERROR: "the framework refuses this, or fails",
    Severity.NO_OP: "what was asked for is silently not done",
    Severity.WASTE: "memory or compute is wasted, or at risk",
}
_FIX = {
    None: "none",
    FixSafety.SAFE: "safe, applied by --fix",
    FixSafety.UNSAFE: "changes what will be run, applied by --fix --unsafe-fixes",
}


def listing(rules: "Iterable[Rule]") -> str:
    """A table of rules."""
    rows = [[rule.code, rule.name, rule.severity, _remarks(rule), rule.summary] for rule in rules]
    return "\n".join(table(["code", "name", "severity", "", "summary"], rows, left=5)) + "\n"


def _remarks(rule: "Rule") -> str:
    """What else a reader of a list wants to know, as letters that the command's help explains."""
    marks = [("o", rule.opt_in), ("d", rule.needs_device), ("f", rule.fix is FixSafety.SAFE)]
    return "".join(letter for letter, holds in marks if holds)
