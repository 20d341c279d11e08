"""The process that solves one job, so that limits can end it and not the worker.

``python -m planner.service.child PARENT`` reads one JSON object from stdin, ``{"request": ..., "allowed": [...],
"memory_bytes": ..., "cpu_s": ...}``, and writes JSON lines to stdout: ``{"progress": "..."}`` as it goes, and last
``{"result": {...}}`` or ``{"problem": {...}}``. What the model's code prints goes to stderr. It ends with its parent.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from planner.errors import InfeasibleError, PlannerError
from planner.extras import needs
from planner.service.confinement import confine, die_with
from planner.service.problems import ProblemError, problem_of
from planner.service.requests import PlanQuestion, PlanRequest, plan_file, understand

Say = Callable[[str], None]


def main() -> None:
    """Reads the job, solves it and writes what comes of it."""
    die_with(int(sys.argv[1]))
    with os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8") as answers:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        _solve(json.load(sys.stdin), answers)


def _solve(job: Mapping[str, Any], answers: TextIO) -> None:
    confine(memory_bytes=job["memory_bytes"], cpu_s=job["cpu_s"])
    allowed = frozenset(job["allowed"])
    request = PlanRequest(**job["request"])
    try:
        question = understand(request, allows=allowed.__contains__)
        _write(answers, {"result": answer(request, question, partial(_say, answers))})
    except PlannerError as error:
        _write(answers, {"problem": problem_of(error)})


def _say(answers: TextIO, line: str) -> None:
    _write(answers, {"progress": line.partition("; Ctrl-C")[0]})  # there is none for those who watch


def answer(request: PlanRequest, question: PlanQuestion, say: Say) -> Mapping[str, Any]:
    """The plan for a question, with summary and report, as JSON data.

    Raises:
        ProblemError: No plan fits. The problem has what `planner solve` prints then as `answer` and `text`.
        PlannerError: The step cannot be traced, or the plan not be carried out.
    """
    with needs("solving"):
        from planner.advice import ways_out
        from planner.answers.plans import report_on, summary_of
        from planner.plan import format_plan
        from planner.planning import solve_graph
        from planner.reporting.documents import infeasible_document, plan_document
        from planner.reporting.page.page import report_page
        from planner.reporting.summary import summarize_infeasible
        from planner.reporting.text import found_text, infeasible_text
        from planner.runtime.rehearsal import rehearse
        from planner.solving.search import Limits
        from planner.tracing import located_in, prepare_spec, trace_step
    started = time.perf_counter()
    step = prepare_spec(question.run)
    with located_in(question.run):
        graph = trace_step(step)
    trace_s = time.perf_counter() - started
    say(f"traced {len(graph):,} ops in {trace_s:.1f} s")
    profile = question.profile
    try:
        outcome = solve_graph(
            graph,
            budget=question.budget_bytes,
            host_budget=question.host_budget_bytes,
            device=profile,
            limits=Limits(time_s=request.time_limit_s, gap=request.gap),
            rehearse=partial(rehearse, step),
            report=say,
        )
    except InfeasibleError as error:
        ways = ways_out(
            question.run,
            budget_bytes=error.budget_bytes,
            host_budget=question.host_budget_bytes,
            device=profile,
            report=say,
        )
        why = summarize_infeasible(error, graph, device=profile.name, ways_out=ways)
        texts = {"answer": infeasible_document(why), "text": infeasible_text(why)}
        raise ProblemError({**problem_of(error), **texts}) from error
    plan, name = outcome.plan, plan_file(request.name)
    summary = summary_of(plan, outcome, graph, memory_bytes=profile.memory_bytes, trace_s=trace_s, path=Path(name))
    report = report_on(plan, graph, profile, plan_file=name, spec_file=request.name, trace_s=trace_s)
    return {
        "summary": plan_document(summary),
        "text": found_text(summary),
        "plan": format_plan(plan),
        "report": report_page(report),
    }


def _write(file: TextIO, record: Mapping[str, Any]) -> None:
    file.write(json.dumps(record) + "\n")
    file.flush()


if __name__ == "__main__":
    main()
