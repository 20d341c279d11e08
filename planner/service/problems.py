"""Errors as problem documents (RFC 9457), with the same text as the command line."""

import json
from collections.abc import Mapping
from typing import Any

from planner.errors import InfeasibleError, LocatedError, MissingExtraError, PlannerError
from planner.service.redaction import without_paths

MEDIA_TYPE = "application/problem+json"

# How OpenAPI documents are told of them.
PROBLEM_ANSWER: dict[str, Any] = {
    "description": "Why not: a problem document (RFC 9457) whose `detail` is what the command line says.",
    "content": {
        MEDIA_TYPE: {
            "schema": {
                "type": "object",
                "required": ["type", "title", "status", "detail"],
                "properties": {
                    "type": {"type": "string"},
                    "title": {"type": "string"},
                    "status": {"type": "integer"},
                    "detail": {"type": "string"},
                    "line": {"type": ["integer", "null"], "description": "Of the spec, from 1."},
                    "column": {"type": ["integer", "null"]},
                    "key": {"type": ["string", "null"], "examples": ["batch.sequence_length"]},
                    "hint": {"type": ["string", "null"]},
                },
            },
            "example": {
                "type": "about:blank",
                "title": "The input cannot be used",
                "status": 422,
                "detail": "spec:2: batch.sequence_length: expected a positive integer, found 'no'",
                "line": 2,
                "column": 24,
                "key": "batch.sequence_length",
                "hint": None,
            },
        }
    },
}


class ProblemError(PlannerError):
    """A problem that is known as its document."""

    def __init__(self, found: Mapping[str, Any]) -> None:
        super().__init__(found["detail"])
        self.problem = found


def problem_of(error: PlannerError) -> Mapping[str, Any]:
    """The problem document of an error; its `status` is what it is worth over HTTP.

    Besides the members of RFC 9457: `line`, `column`, `key` and `hint` of errors that have a place, and the bytes of
    budgets that no plan fits.
    """
    if isinstance(error, ProblemError):
        return error.problem
    # Errors of other libraries name files of this machine.
    problem: dict[str, Any] = {
        "type": "about:blank",
        "title": _title(error),
        "status": 422,
        "detail": _short(without_paths(str(error))),
    }
    if isinstance(error, MissingExtraError):
        problem["status"] = 503
    if isinstance(error, LocatedError):
        problem |= {"line": error.line, "column": error.column, "key": error.key, "hint": error.hint}
    if isinstance(error, InfeasibleError):
        problem |= {
            "budget_bytes": error.budget_bytes,
            "smallest_peak_bytes": error.smallest_peak_bytes,
            "bound_bytes": error.bound_bytes,
            "is_proven": error.is_proven,
        }
    return problem


_LONGEST_DETAIL = 2000  # characters; what was sent may be quoted in it


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_DETAIL else f"{text[:_LONGEST_DETAIL]}…"


def _title(error: PlannerError) -> str:
    if isinstance(error, InfeasibleError):
        return "No plan fits the budget"
    if isinstance(error, MissingExtraError):
        return "The server lacks what this needs"
    return "The input cannot be used"


def problem(status: int, title: str, detail: str) -> Mapping[str, Any]:
    """A problem document of the service's own."""
    return {"type": "about:blank", "title": title, "status": status, "detail": detail}


def limit_reached(detail: str) -> Mapping[str, Any]:
    """The problem document of what was ended since it took too much."""
    return problem(422, "A limit was reached", detail)


def encoded(found: Mapping[str, Any]) -> bytes:
    """A problem document as the body of an answer."""
    return json.dumps(found).encode()
