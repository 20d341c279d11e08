"""Servers that tests start, and what stands in for workers where no solve is wanted."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from planner.plan import format_plan
from planner.reporting.page.page import report_page
from planner.service.store.database import Database
from planner.service.store.jobs import JobStore, Lease, Result
from planner.service.store.tokens import Scope, TokenStore
from tests.reporting.test_page import small_report
from tests.reports import small_plan
from tests.service.conftest import free_port

ROOT = Path(__file__).parents[2]
STARTS_WITHIN_S = 60.0  # on a machine that is busy
COMMAND = (sys.executable, "-c", "from planner.cli import main; main()")
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
    database = Database(url)
    database.migrate()
    _, token = TokenStore(database).create("tests", TOKENS)
    port = free_port()
    command = [*COMMAND, "serve", "--db", url, "--port", str(port), "--workers", str(workers), *options]
    with open(folder / "log", "w") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
    try:
        _wait_for(f"http://127.0.0.1:{port}/readyz", process, folder / "log")
        yield Server(url=f"http://127.0.0.1:{port}", database=database, token=token)
    finally:
        process.terminate()
        process.wait(STARTS_WITHIN_S)
        database.close()


def _wait_for(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    until = time.monotonic() + STARTS_WITHIN_S
    while True:
        try:
            urlopen(url, timeout=STARTS_WITHIN_S).close()
            return
        except URLError:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < until, log.read_text()
            time.sleep(0.1)


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
    until = time.monotonic() + STARTS_WITHIN_S
    while (lease := jobs.lease(f"test-{os.urandom(4).hex()}")) is None:
        assert time.monotonic() < until
        time.sleep(0.05)
    return lease


def done(jobs: JobStore, key: str, *, name: str = "small.yaml", result: Result | None = None) -> str:
    """The id of a job that is done."""
    request = {"spec": "model: {preset: gpt2}\n", "name": name, "budget": "1GB", "device": None}
    job, _ = jobs.submit(key=key, name=name, request=request)
    lease = leased(jobs)
    assert lease.job.id == job.id
    assert jobs.finish(lease, result or small_result())
    return job.id
