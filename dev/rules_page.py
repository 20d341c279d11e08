"""Writes docs/rules.md from the rules, and the rules' examples from the fixtures of their tests.

Run it as ``python -m dev.rules_page`` when a rule or a fixture changes; a test says when that was forgotten.
"""

import json
from collections.abc import Mapping
from pathlib import Path

from planner.device import load_device
from planner.diagnostics import Rule
from planner.files import write_whole
from planner.linting.engine import Options, lint_text
from planner.linting.run import LintRun
from planner.reporting.lint import render, rule_text
from planner.rules import RULES, Example, load_rule

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "rules.md"
EXAMPLES = ROOT / "rules" / "examples.json"
_FIXTURES = ROOT / "tests" / "rules" / "data"
_DEVICE = "h100-80gb"  # of the examples of rules that need one

_HEAD = """# Rules

What `planner lint` looks for. [lint.md](lint.md) says how to run it, to select rules and to silence them;
`planner rule CODE` prints one of these sections. This page is written by `python -m dev.rules_page`.

Severities: **error**, the framework refuses the config or fails; **no-op**, what was asked for is silently not done;
**waste**, memory or compute is wasted, or at risk.
"""


def example_of(rule: Rule) -> Example | None:
    """The first of the rule's bad examples, and what is reported of it; None while it has no example."""
    directory = _FIXTURES / rule.name.replace("-", "_")
    path = min((path for path in directory.glob("bad*") if path.suffix != ".expected"), default=None)
    if path is None:
        return None
    text = path.read_text(encoding="utf-8")
    device = load_device(_DEVICE) if rule.needs_device else None
    options = Options(is_selected=lambda other: not other.opt_in or other.name == rule.name, device=device)
    findings = [found for found in lint_text(text, str(path), options) or () if found.rule.name == rule.name]
    if not findings:
        raise ValueError(f"{path}: {rule.name} finds nothing in it")
    run = LintRun(directory=str(directory), findings=tuple(findings))
    return Example(file=path.name, text=text, findings=render(run, "full").replace(f"{directory}/", ""))


def examples() -> dict[str, Example]:
    """The example of each rule, by its name."""
    found = {entry.name: example_of(load_rule(entry)) for entry in RULES}
    return {name: example for name, example in found.items() if example is not None}


def examples_text(examples: Mapping[str, Example]) -> str:
    """What stands in rules/examples.json."""
    return (
        json.dumps({name: example._asdict() for name, example in examples.items()}, indent=1, ensure_ascii=False) + "\n"
    )


def page(examples: Mapping[str, Example]) -> str:
    """The page."""
    rules = [load_rule(entry) for entry in sorted(RULES) if entry.name in examples]
    rows = [f"| [{rule.code}](#{_anchor(rule)}) | {rule.name} | {rule.severity} | {rule.summary} |" for rule in rules]
    table = "\n".join(("| Code | Name | Severity | What it finds |", "| --- | --- | --- | --- |", *rows))
    sections = [f"## {rule.code} {rule.name}\n\n{rule_text.markdown(rule, examples[rule.name])}\n" for rule in rules]
    return "\n".join((_HEAD, table, "", *sections))


def _anchor(rule: Rule) -> str:
    return f"{rule.code} {rule.name}".lower().replace(" ", "-")


if __name__ == "__main__":
    found = examples()
    write_whole(EXAMPLES, examples_text(found))
    write_whole(PAGE, page(found))
