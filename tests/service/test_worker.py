"""Workers as processes: what ends a solve, what does not end the worker, and what is left when either is killed."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from planner.service.settings import MIB, SolveLimits
from planner.service.store.database import Database
from planner.service.store.jobs import MAX_ATTEMPTS, Answer, Job, JobStatus, JobStore
from planner.service.store.tables import jobs
from tests.service.conftest import database_of
from tests.service.processes import (
    START_S,
    children_of,
    environment,
    eventually,
    is_running,
    settings_for,
    spec_of,
    start_worker,
    stop,
    tiny,
    working,
)

LIMITS = SolveLimits(wall_s=60, memory_bytes=1024 * MIB)


# Which database it is matters to the store, whose tests have both; here they would take twice the time.
@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return database_of(request, tmp_path)


@pytest.fixture
def store(database: Database) -> JobStore:
    return JobStore(database)


@pytest.fixture
def worker(database_url: str, database: Database, tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A worker whose jobs are solved by `tests.service.stub`."""
    with working(settings_for(database_url, limits=LIMITS), tmp_path / "log", is_stub=True) as process:
        yield process


def submit(store: JobStore, name: str) -> Job:
    return store.submit(key=name, name=name, request={"name": name})


def submit_request(store: JobStore, request: dict[str, Any]) -> Job:
    data = {
        "host_budget": None,
        "device": None,
        "gap": 0.005,
        **request,
        "time_limit_s": request["time_limit"],
    }
    del data["time_limit"]
    return store.submit(key=request["spec"], name=request["name"], request=data)


def now(store: JobStore, job: Job) -> Job:
    found = store.get(job.id)
    assert found is not None
    return found


def ended(store: JobStore, job: Job, within_s: float = START_S) -> Job:
    """The job once it has ended."""

    def found() -> Job | None:
        return seen if (seen := now(store, job)).finished_at is not None else None

    return eventually(found, within_s=within_s)  # type: ignore[no-any-return]


def solver_of(store: JobStore, job: Job) -> int:
    """The process that works on a job, once there is one."""
    line = eventually(lambda: (now(store, job).progress or {}).get("lines"))[0]
    return int(line.rsplit(" ", 1)[1])


def test_a_job_is_solved(store: JobStore, worker: "subprocess.Popen[bytes]") -> None:
    job = submit(store, "plain")
    assert JobStatus.DONE is ended(store, job).status
    assert store.answer(job.id) == Answer(summary={"name": "plain"}, text="")


# -- limits


def test_a_longer_limit_of_a_solve_is_one_of_cpu_time_and_of_what_may_be_asked_for_too() -> None:
    assert (3600, 300) == (SolveLimits().cpu_s, SolveLimits().longest_time_limit_s)
    longer = SolveLimits(wall_s=9000)
    assert (36_000, 3000) == (longer.cpu_s, longer.longest_time_limit_s)


def test_a_solve_that_wants_100_gb_is_refused_them(store: JobStore, worker: "subprocess.Popen[bytes]") -> None:
    found = ended(store, submit(store, "greedy"))
    assert found.problem is not None
    assert "the solve needs more than the 1.1 GB that one may take here" == found.problem["detail"]
    assert JobStatus.DONE is ended(store, submit(store, "plain")).status


@pytest.mark.parametrize(
    ("name", "limits", "detail"),
    [
        ("endless", {"wall_s": 5.0}, "the solve took longer than the 5 s that one may take here"),
        ("busy", {"cores": 1 / 60}, "the solve took more than the 1 s of CPU time that one may take here"),
    ],
)
def test_a_solve_that_takes_too_long_is_ended(name: str, limits: dict[str, float], detail: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/planner.db"
    database = Database(url)
    database.migrate()
    store = JobStore(database)
    with working(settings_for(url, limits=replace(LIMITS, **limits)), tmp_path / "log", is_stub=True):
        job = submit(store, name)
        solver = solver_of(store, job)
        found = ended(store, job)
        assert found.problem is not None
        assert (detail, 422) == (found.problem["detail"], found.problem["status"])
        assert not is_running(solver)
        assert JobStatus.DONE is ended(store, submit(store, "plain")).status
    database.close()


def test_a_solve_that_fails_is_a_problem_that_names_no_file(
    store: JobStore, worker: "subprocess.Popen[bytes]", tmp_path: Path
) -> None:
    found = ended(store, submit(store, "broken"))
    assert found.problem is not None
    assert "its process ended with exit status 1 and without an answer" == found.problem["detail"]
    log = (tmp_path / "log").read_text()
    assert "…/place: no such thing\\n\\x1b[31mplanner: all is well" in log
    assert "/secret" not in log
    assert f"job {found.id}: begun, attempt 1\n" in log
    assert re.search(f"job {found.id}: failed after [0-9.]+ s: {found.problem['detail']}\n", log)


def test_a_solve_that_is_killed_is_a_problem(store: JobStore, worker: "subprocess.Popen[bytes]") -> None:
    job = submit(store, "endless")
    os.kill(solver_of(store, job), signal.SIGKILL)
    found = ended(store, job)
    assert found.problem is not None
    assert "its process ended with signal SIGKILL and without an answer" == found.problem["detail"]


def test_a_solve_that_is_killed_is_a_problem_also_when_what_it_started_lives_on(
    store: JobStore, worker: "subprocess.Popen[bytes]"
) -> None:
    found = ended(store, submit(store, "survived by a child"))
    assert found.problem is not None
    assert "its process ended with signal SIGKILL and without an answer" == found.problem["detail"]


def test_a_solve_that_says_much_costs_no_memory(store: JobStore, worker: "subprocess.Popen[bytes]") -> None:
    assert JobStatus.DONE is ended(store, submit(store, "loud")).status
    status = Path(f"/proc/{worker.pid}/status").read_text()
    peak_kib = int(status.partition("VmHWM:")[2].split()[0])
    assert peak_kib * 1024 < 200 * MIB  # it said 100 MB


def test_a_job_from_another_release_fails_and_not_the_worker(
    store: JobStore, tmp_path: Path, database_url: str
) -> None:
    job = store.submit(key="old", name="old", request={"spec": "", "unknown": 1})
    with working(settings_for(database_url), tmp_path / "log"):
        assert JobStatus.FAILED is ended(store, job).status


# -- ends


def test_a_running_job_that_is_cancelled_ends_with_all_its_processes(
    store: JobStore, worker: "subprocess.Popen[bytes]"
) -> None:
    job = submit(store, "with a child")
    lines = eventually(lambda: found if len(found := (now(store, job).progress or {}).get("lines", [])) == 2 else None)
    processes = [int(line.rsplit(" ", 1)[1]) for line in lines]
    store.cancel(job.id)
    assert JobStatus.CANCELLED is ended(store, job).status
    eventually(lambda: not any(is_running(process) for process in processes))
    assert JobStatus.DONE is ended(store, submit(store, "plain")).status


def test_a_worker_that_is_told_to_end_puts_its_job_back(store: JobStore, worker: "subprocess.Popen[bytes]") -> None:
    job = submit(store, "endless")
    solver = solver_of(store, job)
    worker.send_signal(signal.SIGTERM)
    assert 0 == worker.wait(60)
    assert (JobStatus.QUEUED, 0) == (now(store, job).status, now(store, job).attempt)
    assert not is_running(solver)


def test_a_worker_that_is_killed_takes_its_solve_with_it_and_another_one_begins_again(
    store: JobStore, database: Database, database_url: str, worker: "subprocess.Popen[bytes]", tmp_path: Path
) -> None:
    job = submit(store, "endless")
    solver = solver_of(store, job)
    worker.kill()
    worker.wait()
    eventually(lambda: not is_running(solver))
    assert JobStatus.RUNNING is now(store, job).status
    expire(database)
    with working(settings_for(database_url), tmp_path / "log", is_stub=True):
        assert 2 == eventually(lambda: found.attempt if (found := now(store, job)).attempt > 1 else None)
        assert solver != solver_of(store, job)


def expire(database: Database) -> None:
    """Lets every lease run out, as time does."""
    with database.transaction() as connection:
        connection.execute(update(jobs).where(jobs.c.lease_until.is_not(None)).values(lease_until=database.now() - 1))


@pytest.mark.slow
def test_a_job_that_kills_its_workers_is_given_up(database: Database, database_url: str, tmp_path: Path) -> None:
    store = JobStore(database)
    poison, other = submit(store, "deadly"), submit(store, "plain")
    settings = settings_for(database_url)
    for _ in range(MAX_ATTEMPTS):
        start_worker(settings, tmp_path / "log", is_stub=True).wait(60)
        expire(database)
    with working(settings, tmp_path / "log", is_stub=True):
        assert JobStatus.DONE is ended(store, other).status
    assert JobStatus.FAILED is now(store, poison).status
    assert MAX_ATTEMPTS == now(store, poison).attempt


def test_a_worker_told_to_end_while_the_database_is_away_ends(tmp_path: Path) -> None:
    with working(settings_for("postgresql://nobody@127.0.0.1:1/none"), tmp_path / "log", is_stub=True) as process:
        eventually(lambda: "the database is away" in (tmp_path / "log").read_text())
        process.send_signal(signal.SIGTERM)
        assert 0 == process.wait(30)


def test_a_process_ends_with_the_one_that_started_it(tmp_path: Path) -> None:
    start = (
        "import os, subprocess, sys, time; code = 'import os, sys, time; from planner.service.confinement import "
        "die_with; die_with(int(sys.argv[1])); print(os.getpid(), flush=True); time.sleep(600)'; "
        "subprocess.Popen([sys.executable, '-c', code, sys.argv[1] if len(sys.argv) > 1 else str(os.getpid())]); "
        "time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", start], env=environment(), stdout=subprocess.PIPE)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert children_of(parent.pid) == (child,)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    eventually(lambda: not is_running(child))


def test_a_process_whose_parent_is_gone_already_does_not_begin(tmp_path: Path) -> None:
    code = "from planner.service.confinement import die_with; die_with(1); print('begun')"
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, check=False)
    assert (1, b"") == (done.returncode, done.stdout)


# -- the real solver


@pytest.mark.slow
def test_models_that_want_100_gb_or_an_hour_are_stopped_and_others_solved(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/planner.db"
    database = Database(url)
    database.migrate()
    store = JobStore(database)
    limits = SolveLimits(wall_s=60, memory_bytes=16 * 1024 * MIB)
    wanted = {
        "greedy": spec_of("greedy", gigabytes=100),
        "endless": spec_of("endless"),
        "huge": "model: {preset: llama-3-8b, config: {num_hidden_layers: 100000000}}\n"
        "batch: {micro_batch: 1, sequence_length: 512}\n",
    }
    made = {name: submit_request(store, {**tiny(1), "spec": spec, "name": name}) for name, spec in wanted.items()}
    last = submit_request(store, tiny(2))
    worker = start_worker(settings_for(url, limits=limits), tmp_path / "log")
    try:
        assert (
            JobStatus.DONE is eventually(lambda: now(store, last).finished_at and now(store, last), within_s=400).status
        )
    finally:
        stop(worker)
    problems = {name: now(store, job).problem for name, job in made.items()}
    for name in ("greedy", "huge"):
        found = problems[name]
        assert found is not None
        assert found["status"] == 422
    assert problems["endless"] == {
        "type": "about:blank",
        "title": "A limit was reached",
        "status": 422,
        "detail": "the solve took longer than the 60 s that one may take here",
    }
    database.close()
