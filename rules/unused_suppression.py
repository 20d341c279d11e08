"""A comment that silences a rule where it reports nothing."""

from planner.diagnostics import FixSafety, Rule, Severity, Source

RULE = Rule(
    code="SUP001",
    name="unused-suppression",
    severity=Severity.WASTE,
    summary="A comment silences a rule that reports nothing there.",
    why="The reason for the comment is gone, or it names another rule, or stands in another place than was meant. Left "
    "alone, it silences the next mistake.",
    instead="Remove the comment, or the rule's code from it.",
    sources=(Source(title="ruff 0.14", where="rule RUF100, unused-noqa: the same idea"),),
    find=lambda config: (),  # found where suppressions are applied, once all other rules have run
    fix=FixSafety.SAFE,
)
