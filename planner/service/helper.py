"""A process that answers what can be answered at once, so that its limits can end it and not the server.

``python -m planner.service.helper MEMORY_BYTES DEADLINE_S`` reads a question per line from stdin, as JSON, and writes a
line with the answer: ``{"answer": ...}`` or ``{"problem": ...}``. The kernel ends it when a question takes longer than
the deadline, whatever it is doing. It ends when stdin does.
"""

import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any

from planner.answers.estimates import summary_of
from planner.device import load_device
from planner.errors import ConfigError, PlannerError
from planner.estimation.from_spec import run_of
from planner.linting.detection import DIALECTS
from planner.linting.run import Request, lint_content
from planner.linting.selection import Selection, check_words
from planner.reporting.estimate import estimate_document
from planner.reporting.lint.json import document
from planner.service.confinement import OUT_OF_MEMORY_STATUS, confine
from planner.service.problems import problem, problem_of
from planner.service.redaction import fault
from planner.service.requests import SPEC_NAME, PlanRequest, device_named, key_of, understand
from planner.spec import parse_spec

_LONGEST_ANSWER = 4_000_000  # characters of JSON, which the server reads; what people send leads to some thousand


def main() -> None:
    """Answers until stdin ends."""
    memory_bytes, deadline_s = int(sys.argv[1]), float(sys.argv[2])
    confine(memory_bytes=memory_bytes)
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_REAL, deadline_s)  # SIGALRM ends it: nothing of ours handles that
        try:
            text = json.dumps(answer(json.loads(line)))
            if len(text) > _LONGEST_ANSWER:
                limit = f"the answer has more than the {_LONGEST_ANSWER:,} characters that it may"
                text = json.dumps({"problem": problem(422, "A limit was reached", limit)})
        except MemoryError:
            os._exit(OUT_OF_MEMORY_STATUS)
        signal.setitimer(signal.ITIMER_REAL, 0)
        answers.write(text + "\n")
        answers.flush()


def answer(asked: Mapping[str, Any]) -> Mapping[str, Any]:
    """The answer to a question, or the problem with it."""
    try:
        return {"answer": _ANSWERS[asked["what"]](**asked["of"])}
    except PlannerError as error:
        return {"problem": problem_of(error)}
    except MemoryError:
        raise
    except RecursionError:
        return {"problem": problem(422, "The input cannot be used", "nested too deeply")}
    except Exception as error:  # a fault of ours: a line for the operator, and no word of it to those who ask
        print(f"planner: {asked['what']}: {fault(error)}", file=sys.stderr, flush=True)
        return {"problem": problem(500, "A fault of the server", "what went wrong is in its log")}


def lint(
    *, content: str, name: str, dialect: str | None, select: list[str], ignore: list[str], device: str | None
) -> dict[str, Any]:
    """The findings in a config's text, as `planner lint --output-format json` prints them; no file is read.

    Raises:
        PlannerError: A rule, a dialect or the device does not exist, or the text cannot be read.
    """
    check_words((*select, *ignore))
    if dialect is not None and dialect not in DIALECTS:
        raise ConfigError(f"unknown dialect {dialect!r}", path="dialect", hint=f"one of {', '.join(DIALECTS)}")
    request = Request(
        selection=Selection(select=tuple(select), ignore=tuple(ignore)),
        dialect=dialect,
        device=None if device is None else device_named(device),
        is_isolated=True,
        reads_files=False,
    )
    run = lint_content(content.encode(), name, request)
    return document(run) | {"unknown": list(run.unknown)}


def estimate(*, spec: str, device: str | None, allowed: list[str]) -> dict[str, Any]:
    """The estimate of a spec's text, as `planner estimate --json` prints it.

    Raises:
        PlannerError: The spec does not fit, is not known in closed form, or names what is not allowed.
    """
    run_spec = parse_spec(spec, SPEC_NAME, allows=frozenset(allowed).__contains__)
    profile = load_device(run_spec.device) if device is None else device_named(device)
    model = run_spec.model.preset or run_spec.model.name
    return estimate_document(summary_of(model, run_of(run_spec), profile))


def key(*, request: dict[str, Any], allowed: list[str]) -> str:
    """The key of a request for a plan, which is thereby known to be one that can be tried."""
    asked = PlanRequest(**request)
    return key_of(asked, understand(asked, allows=frozenset(allowed).__contains__))


_ANSWERS: Mapping[str, Callable[..., Any]] = {"lint": lint, "estimate": estimate, "key": key}

if __name__ == "__main__":
    main()
