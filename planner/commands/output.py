"""What commands print: results on stdout, progress and errors on stderr."""

from collections.abc import Callable
from typing import Any

import click

STDOUT = "-"

Report = Callable[[str], None]


def say(line: str) -> None:
    """One line on stderr, however many the text has: a message from a model's own code may have several."""
    click.echo("planner: " + " ".join(line.split()), err=True)


def progress(quiet: bool) -> Report:
    """What is called with lines of progress."""
    return (lambda _: None) if quiet else say


def print_json(document: dict[str, Any]) -> None:
    """One JSON object on stdout."""
    import json  # only for those who ask: every command starts through this module

    click.echo(json.dumps(document, indent=2, ensure_ascii=False))
