"""Servers that tests start, and what stands in for workers where no solve is wanted."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from planner.plan import format_plan
from planner.reporting.page.page import report_page
from planner.service.store.database import Database, opened
from planner.service.store.jobs import JobStore, Lease, Result
from planner.service.store.tokens import Scope, TokenStore
from tests.reporting.test_page import small_report
from tests.reports import small_plan
from tests.service.processes import eventually, running, start_command

ROOT = Path(__file__).parents[2]
TOKENS = frozenset(Scope)


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A server of the tests' own, its database, and a token for it."""

    url: str
    database: Database
    token: str

    @property
    def jobs(self) -> JobStore:
        return JobStore(self.database)


@contextmanager
def serving(folder: Path, *options: str, workers: int = 0) -> Iterator[Server]:
    """A server with that many workers, started by the command that users have."""
    url = f"sqlite:///{folder}/planner.db"
    with opened(url) as database:
        _, token = TokenStore(database).create("tests", TOKENS)
        with running(start_command(url, folder / "log", "--workers", str(workers), *options)) as server:
            yield Server(url=f"http://127.0.0.1:{server.port}", database=database, token=token)


@cache
def small_result() -> Result:
    """What a solve of a small step brought; no spec leads to it."""
    plan = small_plan()
    summary = {
        "status": "optimal",
        "model": "small",
        "device": plan.device,
        "budget_bytes": plan.budget_bytes,
        "static_bytes": {"total": plan.predicted.static_bytes},
        "predicted_peak_bytes": plan.predicted.peak_bytes,
        "predicted_peak_at": plan.predicted.peak_at,
        "predicted_step_s": plan.predicted.step_s,
        "added_s": plan.predicted.recompute_s,
        "recompute_s": plan.predicted.recompute_s,
        "stall_s": plan.predicted.stall_s,
        "host_bytes": plan.predicted.host_bytes,
        "gap": 0.0,
        "plan": "elsewhere.yaml",
    }
    return Result(
        summary=summary,
        text="small on a device\n\x1b[31mred",
        plan=format_plan(plan),
        report=report_page(small_report()),
    )


def leased(jobs: JobStore) -> Lease:
    """The next job, had by the test as if it were a worker."""
    lease: Lease = eventually(lambda: jobs.lease(f"test-{os.urandom(4).hex()}"))
    return lease


def done(jobs: JobStore, key: str, *, name: str = "small.yaml", result: Result | None = None) -> str:
    """The id of a job that is done."""
    request = {"spec": "model: {preset: gpt2}\n", "name": name, "budget": "1GB", "device": None}
    job = jobs.submit(key=key, name=name, request=request)
    lease = leased(jobs)
    assert lease.job.id == job.id
    assert jobs.finish(lease, result or small_result())
    return job.id
