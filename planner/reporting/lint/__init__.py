"""What `planner lint` has found, in each of the formats that people and other programs read.

One module per format, named as it, each with the function `text` of a `planner.linting.run.LintRun`. Only the one
that is asked for is imported.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planner.linting.run import LintRun

FORMATS = ("full", "concise", "json", "sarif", "github", "gitlab", "junit")


def render(run: "LintRun", output_format: str, *, is_coloured: bool = False) -> str:
    """The run as text of a format, one of `FORMATS`; colours are for terminals, and only in the full format."""
    if output_format in ("full", "concise") and not run.findings:
        return ""
    if output_format == "full":
        from planner.reporting.lint import full

        return full.text(run, is_coloured=is_coloured)
    text: str = import_module(f"planner.reporting.lint.{output_format}").text(run)
    return text
