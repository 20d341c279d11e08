"""`planner solve --server`: the same answer, solved for by a service. Neither torch nor a solver is needed here."""

import os
import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import click

from planner.commands.guards import end, on_interrupt, second_interrupt_ends
from planner.commands.output import Report, print_json, say
from planner.errors import InfeasibleError, LocatedError, WayOut
from planner.files import read_text, write_whole
from planner.plan import format_plan, naming_spec, parse_plan
from planner.reporting.tables import written
from planner.service.client import Client, ServerError, news, plain

TOKEN = "PLANNER_TOKEN"
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._ -]")  # which the service takes
_LONGEST_NAME = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteSolve:
    """What is asked of a service, and how the answer is given.

    Attributes:
        spec: the spec's file.
        path: of the plan to be written.
        is_plan_printed: whether the plan goes to stdout instead, and nothing else.
        as_json: whether one JSON object does.
        options: of the request, beside spec and name.
    """

    spec: str
    path: Path
    is_plan_printed: bool
    as_json: bool
    options: Mapping[str, Any]

    @property
    def name(self) -> str:
        """What the spec is called on the server."""
        return _NOT_IN_NAMES.sub("_", Path(self.spec).name)[-_LONGEST_NAME:]


def client_of(server: str, token_file: str | None) -> Client:
    """The client for `--server`, with the token of `--token-file` or of the environment.

    Raises:
        ServerError: The address or the token cannot be one, or the file has none.
        LocatedError: The file cannot be read.
    """
    if token_file is None:
        return Client(server, os.environ.get(TOKEN) or None)
    token = read_text(token_file, error_type=LocatedError).strip()
    if not token:
        raise ServerError(f"{token_file} is empty; expected what `planner token create` printed")
    return Client(server, token)


def solve_remotely(client: Client, asked: RemoteSolve, report: Report) -> None:
    """Has a plan solved for, and answers as `planner solve` does.

    Raises:
        InfeasibleError: No plan fits.
        ServerError: There is no answer.
    """
    job_id = _ask(client, asked)
    report(f"asked {client.url}/plans/{job_id}")
    with second_interrupt_ends():
        try:
            job = _wait(client, job_id, report)
        except KeyboardInterrupt:
            _take_back(client, job_id)
            raise
    if job["status"] == "done":
        _answer(client, asked, job_id)
    elif job["status"] == "failed":
        _refuse(asked, job.get("problem") or {})
    else:
        raise ServerError(f"the job was taken back on {client.url}; ask again")


def _ask(client: Client, asked: RemoteSolve) -> str:
    """The id of the job. Ctrl-C waits for it: a job whose id never came could not be taken back."""
    pressed = False

    def interrupt(signum: int, frame: FrameType | None) -> None:
        nonlocal pressed
        pressed = True
        signal.signal(signal.SIGINT, end)

    body = {"spec": read_text(asked.spec), "name": asked.name, **asked.options}
    with on_interrupt(interrupt):
        try:
            job_id = client.ask({name: value for name, value in body.items() if value is not None})
        except ServerError as error:
            raise ServerError(_in_file(str(error), asked), problem=error.problem) from None
    if pressed:
        _take_back(client, job_id)
        raise KeyboardInterrupt
    return job_id


def _wait(client: Client, job_id: str, report: Report) -> Mapping[str, Any]:
    said: Sequence[str] = ()
    job: Mapping[str, Any] = {}
    for job in client.watch(job_id):
        if job["status"] == "queued" and not said:
            report("waiting for a worker")
        lines = (job.get("progress") or {}).get("lines", [])
        for line in news(said, lines):
            report(plain(line))
        said = lines
    return job


def _take_back(client: Client, job_id: str) -> None:
    try:
        client.cancel(job_id)
    except ServerError as error:
        say(f"the job could not be taken back: {error}")
    else:
        say("took the job back")


def _answer(client: Client, asked: RemoteSolve, job_id: str) -> None:
    summary, text = client.result(job_id)
    plan = naming_spec(parse_plan(client.plan(job_id), job_id), asked.spec, plan_file=asked.path)
    if asked.is_plan_printed:
        click.echo(format_plan(plan), nl=False)
        return
    write_whole(asked.path, format_plan(plan))
    if asked.as_json:
        print_json({**summary, "plan": str(asked.path)})
    else:
        click.echo(f"{plain(text)}\n\n{written(str(asked.path))}")


def _refuse(asked: RemoteSolve, problem: Mapping[str, Any]) -> NoReturn:
    """Says why there is no plan, as `planner solve` does."""
    message = _in_file(plain(str(problem.get("detail", "the server does not say why"))), asked)
    answer = problem.get("answer")
    if answer is None:
        raise ServerError(message, problem=problem)
    if asked.as_json:
        print_json(answer)
    elif not asked.is_plan_printed:
        click.echo(plain(problem["text"]))
    raise InfeasibleError(
        message,
        budget_bytes=answer["budget_bytes"],
        static_bytes=answer["static_bytes"]["total"],
        smallest_peak_bytes=answer["smallest_peak_bytes"],
        bound_bytes=answer["bound_bytes"],
        where=answer["smallest_peak_at"],
        is_proven=answer["status"] == "infeasible",
        ways_out=tuple(WayOut(**way) for way in answer["ways_out"]),
    )


def _in_file(message: str, asked: RemoteSolve) -> str:
    """The message, with the spec's file as it was named here."""
    found = message.startswith(f"{asked.name}:")
    return asked.spec + message[len(asked.name) :] if found else message
