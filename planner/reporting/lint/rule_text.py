"""A rule as text for a terminal, as Markdown for pages and services, and as plain data."""

import textwrap
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from planner.diagnostics import FixSafety, Severity
from planner.reporting.tables import WIDTH, table

if TYPE_CHECKING:
    from planner.diagnostics import Rule
    from planner.rules import Example

_INDENT = "  "
_SEVERITY = {
    Severity.ERROR: "the framework refuses this, or fails",
    Severity.NO_OP: "what was asked for is silently not done",
    Severity.WASTE: "memory or compute is wasted, or at risk",
}
_FIX = {
    None: "none",
    FixSafety.SAFE: "safe, --fix applies it",
    FixSafety.UNSAFE: "it changes what will be run, --fix --unsafe-fixes applies it",
}
_ANY_DIALECT = "all"


def listing(rules: "Iterable[Rule]") -> str:
    """A table of rules."""
    cells = [[rule.code, rule.name, rule.severity, rule.fix or "-", _conditions(rule) or "-"] for rule in rules]
    return "\n".join(table(["Code", "name", "severity", "fix", "needs"], cells, left=5)) + "\n"


def document(rule: "Rule", example: "Example") -> dict[str, Any]:
    """A rule as plain data."""
    return {
        "code": rule.code,
        "name": rule.name,
        "severity": rule.severity,
        "summary": rule.summary,
        "why": rule.why,
        "instead": rule.instead,
        "dialects": list(rule.dialects),
        "opt_in": rule.opt_in,
        "needs_device": rule.needs_device,
        "fix": rule.fix,
        "sources": [{"title": source.title, "where": source.where} for source in rule.sources],
        "example": example._asdict(),
    }


def plain(rule: "Rule", example: "Example") -> str:
    """A rule for a terminal."""
    facts = "\n".join(f"{name:<10}  {value}" for name, value in _facts(rule))
    sections = [
        ("Why", _wrapped(rule.why)),
        ("Example", textwrap.indent(example.text.rstrip(), _INDENT)),
        ("Reported", textwrap.indent(example.findings.rstrip(), _INDENT)),
        ("Instead", _wrapped(rule.instead)),
        ("References", "\n".join(f"{_INDENT}{source.title}: {source.where}" for source in rule.sources)),
    ]
    parts = [f"{rule.code} {rule.name}", "\n".join(textwrap.wrap(rule.summary, WIDTH)), facts]
    return "\n\n".join([*parts, *(f"{title}\n{text}" for title, text in sections)]) + "\n"


def markdown(rule: "Rule", example: "Example") -> str:
    """A rule as a section's Markdown, without a heading."""
    suffix = example.file.rpartition(".")[2].replace("yml", "yaml")
    facts = "\n".join(f"- {name}: {value}" for name, value in _facts(rule))
    sources = "\n".join(f"- {source.title}: {_linked(source.where)}" for source in rule.sources)
    return "\n\n".join(
        (
            rule.summary,
            facts,
            f"**Why.** {rule.why}",
            f"**Example.**\n\n```{suffix}\n{example.text.rstrip()}\n```\n\n```\n{example.findings.rstrip()}\n```",
            f"**Instead.** {rule.instead}",
            f"**References.**\n\n{sources}",
        )
    )


def _facts(rule: "Rule") -> Iterator[tuple[str, str]]:
    yield "Severity", f"{rule.severity}: {_SEVERITY[rule.severity]}"
    yield "Frameworks", _dialects(rule)
    yield "Runs", f"with {_conditions(rule)}" if _conditions(rule) else "by default"
    yield "Fix", _FIX[rule.fix]


def _dialects(rule: "Rule") -> str:
    return ", ".join(rule.dialects) or _ANY_DIALECT


def _conditions(rule: "Rule") -> str:
    return ", ".join([*(["--select"] if rule.opt_in else []), *(["--device"] if rule.needs_device else [])])


def _wrapped(text: str) -> str:
    """Paragraphs of Markdown, as they are but for their line ends; what is not running text stays as it is."""
    paragraphs = text.split("\n\n")
    return "\n\n".join(
        textwrap.fill(part, WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT, break_on_hyphens=False)
        if "\n" not in part
        else textwrap.indent(part, _INDENT)
        for part in paragraphs
    )


def _linked(where: str) -> str:
    return f"<{where}>" if where.startswith("https://") and " " not in where else where
