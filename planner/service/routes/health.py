"""Whether the server lives, whether it can work, and what it counts."""

from collections.abc import Iterator, Mapping

from fastapi import APIRouter
from fastapi.responses import PlainTextResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Metric, generate_latest
from prometheus_client.core import GaugeMetricFamily, SummaryMetricFamily
from prometheus_client.registry import Collector

from planner.service.routes.access import Service, may_read
from planner.service.store.jobs import IN_FLIGHT, JobStatus, Tally

router = APIRouter(tags=["operation"])


@router.get("/healthz", response_class=PlainTextResponse)
async def healthz() -> str:
    """Whether the process answers."""
    return "ok\n"


@router.get("/readyz", response_class=PlainTextResponse)
def readyz(service: Service) -> str:
    """Whether the database answers: 503 when it does not."""
    service.database.check()
    return "ok\n"


@router.get(
    "/metrics", dependencies=[may_read], response_class=Response, responses={200: {"content": {"text/plain": {}}}}
)
def metrics(service: Service) -> Response:
    """Jobs by status and how long they take, in Prometheus' text format.

    From the database, so that every server says the same; jobs that were pruned are not in it.
    """
    registry = CollectorRegistry()
    registry.register(_Metrics(service.jobs.tallies()))
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)


class _Metrics(Collector):
    """What is counted, for prometheus_client."""

    def __init__(self, tallies: Mapping[JobStatus, Tally]) -> None:
        self._tallies = tallies

    def collect(self) -> Iterator[Metric]:
        jobs = GaugeMetricFamily("planner_jobs", "Solves that were asked for, by status.", labels=["status"])
        for status in JobStatus:
            jobs.add_metric([status], self._tallies[status].jobs if status in self._tallies else 0)
        yield jobs
        oldest = GaugeMetricFamily(
            "planner_oldest_job_seconds", "Since the oldest solve in flight was asked for.", labels=["status"]
        )
        for status in IN_FLIGHT:
            oldest.add_metric([status], self._tallies[status].oldest_s if status in self._tallies else 0)
        yield oldest
        waits = SummaryMetricFamily(
            "planner_job_wait_seconds", "From being asked for to being begun, by what came of it.", labels=["status"]
        )
        solves = SummaryMetricFamily(
            "planner_job_solve_seconds", "From being begun to the end, by what came of it.", labels=["status"]
        )
        for status, tally in self._tallies.items():
            waits.add_metric([status], tally.waits.count, tally.waits.sum_s)
            solves.add_metric([status], tally.solves.count, tally.solves.sum_s)
        yield waits
        yield solves
