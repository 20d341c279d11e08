"""Whether the server lives, whether it can work, and what it counts."""

from fastapi import APIRouter
from fastapi.responses import PlainTextResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Gauge, generate_latest

from planner.service.routes.access import Service, may_read
from planner.service.store.jobs import JobStatus

router = APIRouter(tags=["operation"])


@router.get("/healthz", response_class=PlainTextResponse)
async def healthz() -> str:
    """Whether the process answers."""
    return "ok\n"


@router.get("/readyz", response_class=PlainTextResponse)
def readyz(service: Service) -> str:
    """Whether the database answers: 503 when it does not."""
    service.jobs.counts()
    return "ok\n"


@router.get(
    "/metrics", dependencies=[may_read], response_class=Response, responses={200: {"content": {"text/plain": {}}}}
)
def metrics(service: Service) -> Response:
    """Jobs by status, in Prometheus' text format. From the database, so that every server says the same."""
    registry = CollectorRegistry()
    jobs = Gauge("planner_jobs", "Solves that were asked for, by status.", ["status"], registry=registry)
    counts = service.jobs.counts()
    for status in JobStatus:
        jobs.labels(status=status.value).set(counts.get(status, 0))
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)
