"""No accepted job is lost and none ends twice, whatever is killed, restarted, full or out of time meanwhile."""

import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from planner.service.store.database import Database
from planner.service.store.jobs import JobStatus, JobStore
from tests.service.chaos import Books, step_the_clock, storm
from tests.service.conftest import a_cluster, database_of
from tests.service.processes import Answer, eventually, serving, settings_for, tiny, working

pytestmark = pytest.mark.slow

JOBS = 200
KILLS = 20
HOUR_S = 3600.0


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return database_of(request, tmp_path)


def check(books: Books, count: int) -> None:
    assert count == len(set(books.accepted.values()))
    assert {JobStatus.DONE: count} == books.statuses
    assert (count, count) == books.results
    assert [] == books.wrong


def test_killed_servers_and_workers_lose_no_job_and_end_none_twice(url: str, tmp_path: Path) -> None:
    books = storm(settings_for(url), tmp_path, count=JOBS, kills=KILLS, every_s=2.0)
    check(books, JOBS)
    assert KILLS == sum(books.kills.values())
    assert {"server", "worker"} == set(books.kills)


def test_a_clock_that_steps_loses_no_job_and_ends_none_twice(url: str, tmp_path: Path) -> None:
    database = Database(url)
    database.migrate()
    steps: list[Callable[[], None]] = [
        lambda: step_the_clock(database, HOUR_S),
        lambda: step_the_clock(database, -HOUR_S),
    ]
    check(storm(settings_for(url), tmp_path, count=40, kills=4, every_s=2.0, disasters=steps * 2), 40)
    database.close()


def test_a_database_that_is_restarted_loses_no_job(reachable: Path, tmp_path: Path) -> None:
    with a_cluster(reachable) as cluster:

        def restart() -> None:
            cluster.stop("immediate")
            time.sleep(3)
            cluster.start()

        check(storm(settings_for(cluster.url()), tmp_path, count=60, kills=2, every_s=2.0, disasters=[restart] * 2), 60)


@pytest.fixture
def reachable() -> Iterator[Path]:
    """A folder that the user PostgreSQL runs as can reach."""
    with tempfile.TemporaryDirectory(prefix="planner-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@contextmanager
def small_disk(disk: Path, size_mib: int) -> Iterator[None]:
    """Makes a folder a file system of its own that is soon full; only root can."""
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size_mib}m", "tmpfs", disk], check=False).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


def fill(disk: Path) -> Path:
    """A file that takes all the room there is."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"\0" * 4096)
        except OSError:
            return ballast


def full_disk(url: str, disk: Path, folder: Path, revive: Callable[[], None]) -> None:
    """Asks for plans before, while and after the disk is full: what was accepted ends in a result."""
    accepted: list[str] = []
    refused: list[Answer] = []
    width = 0
    with serving(settings_for(url), folder / "server.log") as server:

        def ask() -> Answer:
            nonlocal width
            width += 1
            answer = server.post("/v1/plans", tiny(width))
            (accepted if answer.status == 202 else refused).append(
                answer.data["id"] if answer.status == 202 else answer
            )
            return answer

        for _ in range(5):
            assert 202 == ask().status
        ballast = fill(disk)
        with working(settings_for(url), folder / "worker.log", is_stub=True):
            eventually(lambda: ask().status != 202)
            for _ in range(5):
                ask()
            assert 200 == server.get("/healthz").status
            assert {507, 503} >= {answer.status for answer in refused}
            time.sleep(3)
            ballast.unlink()
            revive()
            eventually(lambda: ask().status == 202)
            database = Database(url)
            store = JobStore(database)
            eventually(lambda: all(store.answer(job_id) for job_id in accepted))
            assert len(set(accepted)) == store.tallies()[JobStatus.DONE].jobs
            database.close()


def test_a_full_disk_under_sqlite_loses_no_job(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    with small_disk(disk, 1):
        full_disk(f"sqlite:///{disk}/planner.db", disk, tmp_path, lambda: None)
    assert "Traceback" not in (tmp_path / "server.log").read_text()


def test_a_full_disk_under_postgresql_loses_no_job(reachable: Path, tmp_path: Path) -> None:
    with small_disk(reachable, 90), a_cluster(reachable) as cluster:

        def revive() -> None:
            with suppress(subprocess.CalledProcessError):  # where it is there still
                cluster.start()

        full_disk(cluster.url(), reachable, tmp_path, revive)
