"""What the service answers at once, as data: lint findings and estimates."""

from collections.abc import Callable
from typing import Any

from planner.answers.estimates import summary_of
from planner.device import load_device
from planner.errors import ConfigError
from planner.estimation.from_spec import run_of
from planner.linting.detection import DIALECTS
from planner.linting.run import Request, lint_content
from planner.linting.selection import Selection, check_words
from planner.reporting.estimate import estimate_document
from planner.reporting.lint.json import document
from planner.service.requests import SPEC_NAME, device_named
from planner.spec import parse_spec


def lint(
    content: str,
    name: str,
    *,
    dialect: str | None,
    select: tuple[str, ...],
    ignore: tuple[str, ...],
    device: str | None,
) -> dict[str, Any]:
    """The findings in a config's text, as `planner lint --output-format json` prints them; no file is read.

    Raises:
        PlannerError: A rule, a dialect or the device does not exist, or the text cannot be read.
    """
    check_words((*select, *ignore))
    if dialect is not None and dialect not in DIALECTS:
        raise ConfigError(f"unknown dialect {dialect!r}", path="dialect", hint=f"one of {', '.join(DIALECTS)}")
    request = Request(
        selection=Selection(select=select, ignore=ignore),
        dialect=dialect,
        device=None if device is None else device_named(device),
        is_isolated=True,
        reads_files=False,
    )
    run = lint_content(content.encode(), name, request)
    return document(run) | {"unknown": list(run.unknown)}


def estimate(spec: str, device: str | None, *, allows: Callable[[str], bool]) -> dict[str, Any]:
    """The estimate of a spec's text, as `planner estimate --json` prints it.

    Raises:
        PlannerError: The spec does not fit, is not known in closed form, or names what is not allowed.
    """
    run_spec = parse_spec(spec, SPEC_NAME, allows=allows)
    profile = load_device(run_spec.device) if device is None else device_named(device)
    model = run_spec.model.preset or run_spec.model.name
    return estimate_document(summary_of(model, run_of(run_spec), profile))
