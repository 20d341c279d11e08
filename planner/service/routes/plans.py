"""Plans: asked for, watched, fetched, and taken back."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from pydantic import Field
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from planner.errors import PlannerError
from planner.service.problems import ProblemError, problem
from planner.service.progress import Best, best_of
from planner.service.requests import SPEC_NAME, PlanRequest, plan_file
from planner.service.routes.access import Asker, Service, may_read, may_submit
from planner.service.routes.quick import MAX_SPEC, SPEC, Body
from planner.service.security import REPORT_POLICY, Streams, client_of
from planner.service.store.database import AWAY
from planner.service.store.jobs import IN_FLIGHT, Job, JobStatus, QueueFullError

router = APIRouter(prefix="/v1/plans", tags=["plans"])

# As `planner solve` has them.
DEFAULT_GAP = 0.005
DEFAULT_TIME_LIMIT_S = 60.0
_PAGE = 50
_MOST = 200  # jobs in one list
_NAME = r"^[A-Za-z0-9._ -]{1,200}$"


def _as(media_type: str) -> dict[str, Any]:
    """How OpenAPI documents are told that an answer is no JSON."""
    return {"response_class": Response, "responses": {200: {"content": {media_type: {}}}}}


_ID = "^[0-9a-f]{32}$"
JobId = Annotated[str, Path(pattern=_ID, description="As `POST /v1/plans` gave it.")]
SeenId = Annotated[str | None, Query(pattern=_ID, description="The last one seen, to go on with those before it.")]


class LimitError(PlannerError):
    """More than one request may ask for."""


class PlanBody(Body):
    """A plan to be solved for."""

    spec: str = Field(max_length=MAX_SPEC, description="The spec's YAML text.", examples=[SPEC])
    budget: str = Field(max_length=64, description="Memory that the step may use.", examples=["40GB"])
    name: str = Field(SPEC_NAME, pattern=_NAME, description="What to call it.", examples=["llama-3-8b.yaml"])
    host_budget: str | None = Field(None, max_length=64, description="Host memory for offloaded tensors; 0 for none.")
    device: str | None = Field(None, max_length=50, description="A device instead of the spec's.")
    gap: float = Field(DEFAULT_GAP, ge=0, le=1, description="Stop once within this fraction of the least possible.")
    time_limit: float = Field(
        DEFAULT_TIME_LIMIT_S, gt=0, description="Seconds after which to stop solving, with the best plan found."
    )


@router.post("", status_code=202, dependencies=[may_submit], summary="Ask for a plan")
def post_plan(body: PlanBody, service: Service, asker: Asker) -> JSONResponse:
    """The job that solves for it: a new one, or one that has answered or will answer the same question.

    `Location` is where to look. What is plainly wrong with a spec is said at once, with 422.
    """
    job = ask(body, service, asker)
    return JSONResponse(document(job), status_code=202, headers={"location": f"/v1/plans/{job.id}"})


def ask(body: PlanBody, service: Service, asker: str) -> Job:
    """The job for what is asked.

    Raises:
        PlannerError: What is asked cannot be understood, names what is not allowed, or is too much.
    """
    longest = service.settings.limits.longest_time_limit_s
    if body.time_limit > longest:
        raise LimitError(f"time_limit: at most {longest:g} s here, found {body.time_limit:g}")
    request = PlanRequest(
        spec=body.spec,
        name=body.name,
        budget=body.budget,
        host_budget=body.host_budget,
        device=body.device,
        gap=body.gap,
        time_limit_s=body.time_limit,
    )
    key = service.helpers.key(asker, request)
    try:
        return service.jobs.submit(
            key=key, name=request.name, request=asdict(request), asker=asker, limits=service.settings.queue
        )
    except QueueFullError as error:
        raise ProblemError(problem(429 if error.is_of_one else 503, "The queue is full", str(error))) from error


@router.get("", dependencies=[may_read], summary="List and search")
def list_plans(
    service: Service,
    q: Annotated[str, Query(max_length=200, description="Part of the name.")] = "",
    status: JobStatus | None = None,
    before: SeenId = None,
    limit: Annotated[int, Query(ge=1, le=_MOST)] = _PAGE,
) -> dict[str, Any]:
    """Jobs, the newest first."""
    return {"plans": [document(job) for job in service.jobs.search(text=q, status=status, before=before, limit=limit)]}


@router.get("/{job_id}", dependencies=[may_read], summary="Look at a plan")
def get_plan(job_id: JobId, service: Service) -> dict[str, Any]:
    """Where it stands; once it is done, with what `planner solve` prints, as JSON (`summary`) and as `text`.

    When no plan fits, the problem has both, as `answer` and `text`.
    """
    job = found(service.jobs.get(job_id))
    answer = service.jobs.answer(job_id) if job.status is JobStatus.DONE else None
    return document(job) | ({} if answer is None else {"summary": answer.summary, "text": answer.text})


@router.delete("/{job_id}", dependencies=[may_submit], summary="Take it back")
def delete_plan(job_id: JobId, service: Service) -> dict[str, Any]:
    """The job: it ends once all who asked for it have taken that back. One that has ended stays."""
    return document(found(service.jobs.cancel(job_id)))


@router.get(
    "/{job_id}/plan.yaml",
    dependencies=[may_read],
    summary="The plan that planner.apply takes",
    **_as("application/yaml"),
)
def get_plan_file(job_id: JobId, service: Service) -> Response:
    """The plan file."""
    job = found(service.jobs.get(job_id))
    headers = {"content-disposition": f'attachment; filename="{plan_file(job.name)}"'}
    content = of_result(job, service.jobs.plan(job_id))
    return Response(content, media_type="application/yaml", headers=headers)


@router.get("/{job_id}/report.html", dependencies=[may_read], summary="The report", response_class=HTMLResponse)
def get_report(job_id: JobId, service: Service) -> HTMLResponse:
    """The report as one page that needs no network; its own policy lets its own script run and no other."""
    # The plan's page shows it in a frame.
    headers = {"x-frame-options": "SAMEORIGIN", "content-security-policy": REPORT_POLICY}
    return HTMLResponse(of_result(found(service.jobs.get(job_id)), service.jobs.report(job_id)), headers=headers)


@router.get(
    "/{job_id}/events",
    dependencies=[may_read],
    summary="Watch it",
    **_as("text/event-stream"),
)
async def get_events(job_id: JobId, service: Service, request: Request) -> StreamingResponse:
    """Server-sent events: `job` with the job whenever there is news, until it has ended.

    The stream may end before that, after some minutes or when the database is away: ask again.
    """
    first = found(await run_in_threadpool(service.jobs.get, job_id))
    until = time.monotonic() + service.settings.longest_stream_s

    async def events() -> AsyncIterator[str]:
        job: Job | None = first
        said = ""
        while job is not None and time.monotonic() < until:
            news = json.dumps(document(job))
            # A comment keeps proxies from closing a stream that has no news.
            yield f"event: job\ndata: {news}\n\n" if news != said else ": \n\n"
            said = news
            if job.status not in IN_FLIGHT or await request.is_disconnected():
                return
            await asyncio.sleep(service.streams.pause_s)
            try:
                job = await run_in_threadpool(service.jobs.get, job_id)
            except AWAY:
                return  # those who watch ask again, and are told

    return _Stream(events(), service.streams, client_of(request.scope))


class _Stream(StreamingResponse):
    """A stream of events, counted while it is open."""

    def __init__(self, events: AsyncIterator[str], streams: Streams, client: str) -> None:
        super().__init__(events, media_type="text/event-stream")
        self._streams = streams
        self._client = client

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._streams.one(self._client):
            await super().__call__(scope, receive, send)


def best_so_far(job: Job) -> Best | None:
    """The best plan that a job's progress tells of."""
    return None if job.progress is None else best_of(job.progress["lines"])


def found(job: Job | None) -> Job:
    """The job; a 404 when there is none."""
    if job is None:
        raise HTTPException(404, "there is no such plan")
    return job


def of_result(job: Job, part: str | None) -> str:
    """A part of a job's result; a 409 when it is not done."""
    if part is None:
        raise HTTPException(409, f"the plan is {job.status}")
    return part


def document(job: Job) -> dict[str, Any]:
    """A job as JSON data."""
    best = best_so_far(job)
    return {
        "id": job.id,
        "url": f"/v1/plans/{job.id}",
        "name": job.name,
        "status": job.status,
        "created_at": job.created_at,
        "started_at": job.started_at,
        "finished_at": job.finished_at,
        "attempt": job.attempt,
        "progress": job.progress,
        "best": None if best is None else asdict(best),
        "problem": job.problem,
    }
