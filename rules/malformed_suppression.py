"""A comment that is meant to silence a rule, and does not."""

from planner.diagnostics import Rule, Severity, Source

RULE = Rule(
    code="SUP002",
    name="malformed-suppression",
    severity=Severity.WASTE,
    summary="A comment is meant to silence a rule and cannot be read.",
    why="Only `planner: ignore[...]` and `planner: ignore-file[...]`, with codes or names of rules in the brackets, "
    "silence anything. All rules at once cannot be silenced by leaving the brackets out: that would hide the next "
    "mistake too.",
    instead="`# planner: ignore[CODE] reason`",
    sources=(Source(title="this linter", where="docs/lint.md"),),
    find=lambda config: (),  # found where suppressions are read
)
