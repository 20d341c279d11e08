"""What tells a finding from others, from one state of a file to the next: services match findings by it.

It has no line numbers in it, so that it stays when lines move, and no message, whose figures may change.
"""

from collections import Counter
from collections.abc import Iterator
from hashlib import sha256
from typing import TYPE_CHECKING

from planner.reporting.lint.regions import portable

if TYPE_CHECKING:
    from planner.linting.run import LintRun


def fingerprints(run: "LintRun") -> Iterator[str]:
    """One for each finding, in their order, all different: of rule, file, key, the text that is meant, and a number."""
    alike: Counter[str] = Counter()
    for finding in run.findings:
        place = finding.report.place
        meant = place.document.text[place.start : place.end]
        parts = (finding.rule.code, portable(place.document.path, run.directory), place.key, meant)
        what = "\0".join(parts)
        yield sha256(f"{what}\0{alike[what]}".encode(errors="surrogatepass")).hexdigest()
        alike[what] += 1
