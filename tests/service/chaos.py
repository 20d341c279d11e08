"""A service whose servers and workers are killed at random while it is asked for plans, and the books of what came."""

import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from sqlalchemy import func, select, update

from planner.service.settings import Settings
from planner.service.store.database import Database
from planner.service.store.jobs import JobStatus, JobStore
from planner.service.store.tables import jobs, results
from tests.service.conftest import free_port
from tests.service.processes import Server, answers, start_server, start_worker, stop, tiny

Process = Any  # subprocess.Popen[bytes], which cannot be written so at run time
WATCH_S = 0.2
END_S = 1800.0  # for the last job to end: leases of 30 s, on a machine that does other things too


@dataclass(frozen=True, slots=True, kw_only=True)
class Books:
    """What came of it all.

    Attributes:
        accepted: Ids that a client was given, by width of what it asked for.
        statuses: How many jobs ended how.
        results: How many results there are, of how many jobs.
        wrong: Jobs whose result is another's, or that changed after they had ended.
        kills: What was killed, and how often.
        retries: Requests that had to be sent again.
        attempts: How many jobs were begun how often.
        took_s: In all.
    """

    accepted: Mapping[int, str]
    statuses: Mapping[JobStatus, int]
    results: tuple[int, int]
    wrong: Sequence[str]
    kills: Mapping[str, int]
    retries: int
    attempts: Mapping[int, int]
    took_s: float


@dataclass(slots=True, kw_only=True)
class Chaos:
    """Servers and workers on one database, of which any may be killed."""

    settings: Settings
    folder: Path
    is_stub: bool
    random: random.Random
    servers: list[Server] = field(default_factory=list)
    workers: list[Process] = field(default_factory=list)
    kills: Counter[str] = field(default_factory=Counter)
    retries: int = 0

    def __enter__(self) -> "Chaos":
        self.servers = [start_server(self.settings, self.folder / "server.log") for _ in range(2)]
        self.workers = [self._worker() for _ in range(3)]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in (*self.workers, *(server.process for server in self.servers)):
            stop(process)

    def _worker(self) -> Process:
        return start_worker(self.settings, self.folder / "worker.log", is_stub=self.is_stub)

    def kill_one(self) -> None:
        """Ends one of the processes as `kill -9` does, and starts another in its place."""
        if self.random.random() < 2 / 5:
            number = self.random.randrange(len(self.servers))
            self.servers[number].process.send_signal(signal.SIGKILL)
            self.servers[number].process.wait()
            self.servers[number] = start_server(self.settings, self.folder / "server.log", free_port())
            self.kills["server"] += 1
        else:
            number = self.random.randrange(len(self.workers))
            self.workers[number].send_signal(signal.SIGKILL)
            self.workers[number].wait()
            self.workers[number] = self._worker()
            self.kills["worker"] += 1

    def revive(self) -> None:
        """Starts what has ended by itself anew, as whoever operates the service would have it done."""
        for number, server in enumerate(self.servers):
            if server.process.poll() is not None:
                self.servers[number] = start_server(self.settings, self.folder / "server.log", free_port())
        for number, worker in enumerate(self.workers):
            if worker.poll() is not None:
                self.workers[number] = self._worker()

    def submit(self, width: int) -> str:
        """The id of an accepted job, however often it has to be asked for."""
        until = time.monotonic() + END_S
        while time.monotonic() < until:
            server = self.random.choice(self.servers)
            with suppress(OSError, ValueError):  # gone, or gone in the middle of its answer
                answer = server.post("/v1/plans", tiny(width))
                if answer.status == 202:
                    return str(answer.data["id"])
                assert answer.status in (503, 507), answer.body
            self.retries += 1
            time.sleep(WATCH_S)
        raise AssertionError(f"tiny {width} was never accepted")


def storm(
    settings: Settings,
    folder: Path,
    *,
    count: int,
    kills: int,
    every_s: float,
    seed: int = 1,
    is_stub: bool = True,
    disasters: Sequence[Callable[[], None]] = (),
) -> Books:
    """Asks for `count` plans while processes are killed, and what came of it once all have ended.

    Args:
        every_s: Between two kills, on average.
        is_stub: Whether `tests.service.stub` stands in for the solver.
        disasters: What else happens, each once, spread over the kills.
    """
    began = time.monotonic()
    accepted: dict[int, str] = {}
    finished: dict[str, float | None] = {}
    database = Database(settings.database)
    database.migrate()
    store = JobStore(database)
    with ExitStack() as stack:
        chaos = stack.enter_context(
            Chaos(settings=settings, folder=folder, is_stub=is_stub, random=random.Random(seed))
        )
        client = threading.Thread(target=lambda: accepted.update((n, chaos.submit(n)) for n in range(1, count + 1)))
        client.start()
        while not any(answers(server) for server in chaos.servers):
            time.sleep(WATCH_S)
        for number in range(kills):
            time.sleep(chaos.random.uniform(0, 2 * every_s))
            chaos.kill_one()
            if disasters and number % (kills // len(disasters)) == kills // len(disasters) - 1:
                disasters[number // (kills // len(disasters))]()
        until = time.monotonic() + END_S
        while len(finished) < count and time.monotonic() < until:
            time.sleep(WATCH_S)
            chaos.revive()
            for job_id in [job_id for job_id in tuple(accepted.values()) if job_id not in finished]:
                job = store.get(job_id)
                assert job is not None, f"{job_id} is lost"
                if job.finished_at is not None:
                    finished[job_id] = job.finished_at
        client.join()
        books = _books(database, store, accepted, finished, chaos, time.monotonic() - began)
    database.close()
    return books


def _books(
    database: Database,
    store: JobStore,
    accepted: Mapping[int, str],
    finished: Mapping[str, float | None],
    chaos: Chaos,
    took_s: float,
) -> Books:
    with database.reading() as connection:
        counted = connection.execute(select(func.count(), func.count(results.c.job_id.distinct())).select_from(results))
        rows, of = counted.one()
        attempts = Counter(connection.execute(select(jobs.c.attempt)).scalars())
    wrong = []
    for width, job_id in accepted.items():
        job, result = store.get(job_id), store.answer(job_id)
        assert job is not None
        if job.name != f"tiny {width}" or job.finished_at != finished.get(job_id):
            wrong.append(job_id)
        if chaos.is_stub and (result is None or result.summary != {"name": job.name}):
            wrong.append(job_id)
    return Books(
        accepted=accepted,
        statuses={status: tally.jobs for status, tally in store.tallies().items()},
        results=(rows, of),
        wrong=wrong,
        kills=chaos.kills,
        retries=chaos.retries,
        attempts=attempts,
        took_s=took_s,
    )


def step_the_clock(database: Database, by_s: float) -> None:
    """Makes every time that is kept as far from now as a clock that was set forward by so much would."""
    with database.transaction() as connection:
        connection.execute(update(jobs).values(created_at=jobs.c.created_at - by_s))
        connection.execute(
            update(jobs).where(jobs.c.lease_until.is_not(None)).values(lease_until=jobs.c.lease_until - by_s)
        )
