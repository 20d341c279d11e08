"""How many findings each rule has."""

import json
from collections import Counter
from typing import TYPE_CHECKING

from planner.reporting.tables import table

if TYPE_CHECKING:
    from planner.linting.run import LintRun


def text(run: "LintRun", *, as_json: bool = False) -> str:
    """The rules that have findings, the one with the most first, as a table or as a JSON object."""
    rule_by_code = {finding.rule.code: finding.rule for finding in run.findings}
    fixable = Counter(finding.rule.code for finding in run.findings if finding.report.fix)
    counts = Counter(finding.rule.code for finding in run.findings)
    ordered = sorted(counts, key=lambda code: (-counts[code], code))
    if as_json:
        rows = [
            {
                "code": code,
                "name": rule_by_code[code].name,
                "severity": rule_by_code[code].severity,
                "count": counts[code],
                "fixable": fixable[code],
            }
            for code in ordered
        ]
        return json.dumps({"statistics": rows}, indent=2) + "\n"
    if not ordered:
        return ""
    cells = [
        [code, rule_by_code[code].name, rule_by_code[code].severity, str(counts[code]), str(fixable[code])]
        for code in ordered
    ]
    return "\n".join(table(["code", "rule", "severity", "findings", "fixable"], cells, left=3)) + "\n"
