"""The queue of solves, in a table: submit, lease, report, finish.

What holds whatever dies when: a job that was accepted stays until it is done, failed or cancelled, and ends once. A
worker has a job by a lease that it renews; when the lease runs out the job is anyone's again, with the next attempt
number. Whatever a worker writes goes with its name and attempt number, so that one that was thought dead can change
nothing any more.

Those who ask take turns, however much one of them asks for: each job has a number, one more than the last of the same
asker and at least that of the job that is next, and the lowest is next.

Source: start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996), with every job taken for as long as any other.
"""

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from uuid import uuid4

from sqlalchemy import ColumnElement, Connection, Row, and_, delete, func, insert, or_, select, update
from sqlalchemy.exc import IntegrityError

from planner.errors import PlannerError
from planner.service.problems import problem
from planner.service.settings import QueueLimits
from planner.service.store.database import Database
from planner.service.store.tables import jobs, questions, results

LEASE_S = 30.0  # a worker that says nothing for so long is taken for dead
# A job whose workers died so often is given up: it may be what kills them. A solve runs in a process of its own, so a
# worker dies for reasons of the machine, which do not come so often.
MAX_ATTEMPTS = 10


class JobStatus(StrEnum):
    """Where a job stands."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


IN_FLIGHT = (JobStatus.QUEUED, JobStatus.RUNNING)
_LIMITS = QueueLimits()
_GIVEN_UP = problem(500, "Given up", f"{MAX_ATTEMPTS} workers died while they solved this")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A solve that was asked for.

    Attributes:
        id: 32 hexadecimal digits.
        key: The hash of what is asked.
        name: For people.
        budget: What is asked for, as it was written, or None.
        device: The device that was named besides the spec, or None.
        status: Where it stands.
        created_at: Seconds since 1970, by the database's clock.
        started_at: When it was begun last, or None.
        finished_at: When it ended, or None.
        attempt: How often it was begun.
        progress: What its worker said last, as JSON data, or None.
        problem: Why there is no plan, as JSON data, or None.
    """

    id: str
    key: str
    name: str
    budget: str | None
    device: str | None
    status: JobStatus
    created_at: float
    started_at: float | None
    finished_at: float | None
    attempt: int
    progress: Mapping[str, Any] | None
    problem: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A worker's right to a job; `request` is what is asked, as JSON data."""

    job: Job
    request: Mapping[str, Any]
    worker: str
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a solve brought: the summary as JSON data and as text, the plan as YAML, the report as HTML."""

    summary: Mapping[str, Any]
    text: str
    plan: str
    report: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What is said of a solve: the summary as JSON data and as text."""

    summary: Mapping[str, Any]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Of how many jobs a time is known, and the sum of it."""

    count: int
    sum_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """What there is of jobs with one status.

    Attributes:
        jobs: How many.
        oldest_s: Since the first of them was asked for.
        waits: From then to when a job was begun last.
        solves: From then to its end.
    """

    jobs: int
    oldest_s: float
    waits: Times
    solves: Times


class QueueFullError(PlannerError):
    """More is asked for than may wait; `is_of_one` where all of it is by the same asker."""

    def __init__(self, message: str, *, is_of_one: bool) -> None:
        super().__init__(message)
        self.is_of_one = is_of_one


class JobStore:
    """The operations on jobs; each is one transaction."""

    def __init__(self, database: Database) -> None:
        self._database = database

    # -- for those who ask

    def submit(
        self, *, key: str, name: str, request: Mapping[str, Any], asker: str = "", limits: QueueLimits = _LIMITS
    ) -> Job:
        """The job for a question: one that is done or in flight with the same key is joined, else it is a new one.

        One whose cancelling was asked for, and not carried out yet, is wanted again.

        Raises:
            QueueFullError: It would be new, and too many are in flight.
        """
        while True:
            try:
                with self._database.transaction() as connection:
                    found = _joined(connection, key)
                    if found is not None:
                        return found
                    turn = _turn(connection, asker, limits)
                    return self._insert(connection, key, name, request, asker=asker, turn=turn)
            except IntegrityError:
                continue  # another one inserted it in between: on PostgreSQL, only the index serialises the two

    def _insert(
        self, connection: Connection, key: str, name: str, request: Mapping[str, Any], *, asker: str, turn: int
    ) -> Job:
        job_id = uuid4().hex
        connection.execute(
            insert(jobs).values(
                id=job_id,
                key=key,
                name=name,
                budget=request.get("budget"),
                device=request.get("device"),
                asker=asker,
                turn=turn,
                status=JobStatus.QUEUED,
                created_at=select(self._database.now()).scalar_subquery(),
                askers=1,
                attempt=0,
            )
        )
        connection.execute(insert(questions).values(job_id=job_id, request=json.dumps(request)))
        return _job(connection.execute(select(jobs).where(jobs.c.id == job_id)).one())

    def get(self, job_id: str) -> Job | None:
        """The job, or None."""
        with self._database.reading() as connection:
            row = connection.execute(select(jobs).where(jobs.c.id == job_id)).one_or_none()
        return None if row is None else _job(row)

    def request(self, job_id: str) -> Mapping[str, Any] | None:
        """What is asked, as JSON data, or None if there is no such job."""
        with self._database.reading() as connection:
            return _request(connection, job_id)

    def answer(self, job_id: str) -> Answer | None:
        """What is said of a job that is done, or None; plan and report, which are larger, stay where they are."""
        row = self._of_result(job_id, results.c.summary, results.c.text)
        return None if row is None else Answer(summary=json.loads(row.summary), text=row.text)

    def plan(self, job_id: str) -> str | None:
        """The plan of a job that is done, or None."""
        row = self._of_result(job_id, results.c.plan)
        return None if row is None else str(row.plan)

    def report(self, job_id: str) -> str | None:
        """The report of a job that is done, or None."""
        row = self._of_result(job_id, results.c.report)
        return None if row is None else zlib.decompress(row.report).decode()

    def _of_result(self, job_id: str, *columns: ColumnElement[Any]) -> Row[Any] | None:
        with self._database.reading() as connection:
            return connection.execute(select(*columns).where(results.c.job_id == job_id)).one_or_none()

    def search(
        self, *, text: str = "", status: JobStatus | None = None, before: str | None = None, limit: int
    ) -> Sequence[Job]:
        """Jobs, the newest first, whose names contain the text; `before` is the id of the last one seen."""
        query = select(jobs).order_by(jobs.c.created_at.desc(), jobs.c.id.desc()).limit(limit)
        if "\0" in text:
            return []  # no name has it, and PostgreSQL cannot even look for it
        if text:
            query = query.where(func.lower(jobs.c.name).contains(text.lower(), autoescape=True))
        if status is not None:
            query = query.where(jobs.c.status == status)
        if before is not None:
            seen_at = select(jobs.c.created_at).where(jobs.c.id == before).scalar_subquery()
            at_once = and_(jobs.c.created_at == seen_at, jobs.c.id < before)
            query = query.where(or_(jobs.c.created_at < seen_at, at_once))
        with self._database.reading() as connection:
            return [_job(row) for row in connection.execute(query)]

    def cancel(self, job_id: str) -> Job | None:
        """The job after one of those who asked took that back: it ends once none is left. None if there is no job."""
        with self._database.transaction() as connection:
            connection.execute(
                update(jobs)
                .where(jobs.c.id == job_id, jobs.c.status.in_(IN_FLIGHT), _is_wanted)
                .values(askers=jobs.c.askers - 1)
            )
            connection.execute(
                update(jobs)
                .where(jobs.c.id == job_id, jobs.c.status == JobStatus.QUEUED, ~_is_wanted)
                .values(status=JobStatus.CANCELLED, finished_at=self._database.now())
            )
            row = connection.execute(select(jobs).where(jobs.c.id == job_id)).one_or_none()
        return None if row is None else _job(row)

    # -- for the operator

    def tallies(self) -> Mapping[JobStatus, Tally]:
        """What there is of jobs with each status."""
        waited_s, solved_s = jobs.c.started_at - jobs.c.created_at, jobs.c.finished_at - jobs.c.started_at
        query = select(
            jobs.c.status,
            func.count().label("jobs"),
            (self._database.now() - func.min(jobs.c.created_at)).label("oldest_s"),
            func.count(waited_s).label("waits"),
            func.coalesce(func.sum(waited_s), 0.0).label("waited_s"),
            func.count(solved_s).label("solves"),
            func.coalesce(func.sum(solved_s), 0.0).label("solved_s"),
        ).group_by(jobs.c.status)
        with self._database.reading() as connection:
            return {JobStatus(row.status): _tally(row) for row in connection.execute(query)}

    def prune(self, *, older_than_s: float) -> int:
        """How many jobs were deleted, with their results: those that ended longer ago than that."""
        with self._database.transaction() as connection:
            return connection.execute(
                delete(jobs).where(jobs.c.finished_at < self._database.now() - older_than_s)
            ).rowcount

    # -- for workers

    def lease(self, worker: str) -> Lease | None:
        """The job that is next, of those that wait and those whose workers are silent; None when there is none.

        The worker's name must be its alone for all time: a job that was put back has the same attempt number again.
        Jobs that were begun too often are given up on the way, and jobs whose cancelling nobody carried out end.
        """
        with self._database.transaction() as connection:
            self._end_abandoned(connection)
            query = (
                select(jobs)
                .where(or_(jobs.c.status == JobStatus.QUEUED, self._is_abandoned()))
                .order_by(jobs.c.turn, jobs.c.created_at, jobs.c.id)
                .limit(1)
                .with_for_update(skip_locked=True)  # SQLite has no such clause, and one writer at a time
            )
            row = connection.execute(query).one_or_none()
            if row is None:
                return None
            attempt = row.attempt + 1
            connection.execute(
                update(jobs)
                .where(jobs.c.id == row.id)
                .values(
                    status=JobStatus.RUNNING,
                    attempt=attempt,
                    worker=worker,
                    started_at=self._database.now(),
                    lease_until=self._database.now() + LEASE_S,
                    progress=None,
                )
            )
            request = _request(connection, row.id)
            assert request is not None
            return Lease(job=_job(row), request=request, worker=worker, attempt=attempt)

    def _is_abandoned(self) -> ColumnElement[bool]:
        # A lease further ahead than any is given means that the clock was set back: its worker may be dead for long.
        now = self._database.now()
        ran_out = or_(jobs.c.lease_until < now, jobs.c.lease_until > now + 2 * LEASE_S)
        return and_(jobs.c.status == JobStatus.RUNNING, ran_out)

    def _end_abandoned(self, connection: Connection) -> None:
        abandoned, now = self._is_abandoned(), self._database.now()
        connection.execute(
            update(jobs).where(abandoned, ~_is_wanted).values(status=JobStatus.CANCELLED, finished_at=now)
        )
        connection.execute(
            update(jobs)
            .where(abandoned, jobs.c.attempt >= MAX_ATTEMPTS)
            .values(status=JobStatus.FAILED, finished_at=now, problem=json.dumps(_GIVEN_UP))
        )

    def renew(self, lease: Lease, progress: Mapping[str, Any]) -> bool:
        """Whether the worker still has the job and should go on: it has until `LEASE_S` from now."""
        values = {"lease_until": self._database.now() + LEASE_S, "progress": json.dumps(progress)}
        with self._database.transaction() as connection:
            changed = connection.execute(update(jobs).where(_is_held(lease), _is_wanted).values(**values))
        return changed.rowcount == 1

    def finish(self, lease: Lease, result: Result) -> bool:
        """Whether the result was taken: not when the lease was lost."""
        with self._database.transaction() as connection:
            if not self._end(connection, lease, JobStatus.DONE):
                return False
            connection.execute(
                insert(results).values(
                    job_id=lease.job.id,
                    summary=json.dumps(result.summary),
                    text=result.text,
                    plan=result.plan,
                    report=zlib.compress(result.report.encode()),
                )
            )
        return True

    def fail(self, lease: Lease, problem: Mapping[str, Any]) -> bool:
        """Whether the failure was taken: not when the lease was lost."""
        with self._database.transaction() as connection:
            return self._end(connection, lease, JobStatus.FAILED, problem=json.dumps(problem))

    def give_back(self, lease: Lease) -> JobStatus | None:
        """What becomes of a job that its worker lets go of: None when the lease was lost before.

        It is queued, at once anyone's and as if it had not been begun; or cancelled, when nobody wants it any more.
        """
        with self._database.transaction() as connection:
            held = select(jobs.c.askers).where(_is_held(lease)).with_for_update()
            askers = connection.execute(held).scalar_one_or_none()
            if askers is None:
                return None
            if askers == 0:
                self._end(connection, lease, JobStatus.CANCELLED)
                return JobStatus.CANCELLED
            connection.execute(
                update(jobs)
                .where(_is_held(lease))
                .values(
                    status=JobStatus.QUEUED,
                    attempt=lease.attempt - 1,
                    started_at=None,
                    lease_until=None,
                    worker=None,
                )
            )
            return JobStatus.QUEUED

    def _end(self, connection: Connection, lease: Lease, status: JobStatus, **values: Any) -> bool:
        changed = connection.execute(
            update(jobs)
            .where(_is_held(lease))
            .values(status=status, finished_at=self._database.now(), lease_until=None, **values)
        )
        return changed.rowcount == 1


_is_wanted = jobs.c.askers > 0  # else it is cancelled, or to be, by its worker


def _is_held(lease: Lease) -> ColumnElement[bool]:
    return and_(
        jobs.c.id == lease.job.id,
        jobs.c.status == JobStatus.RUNNING,
        jobs.c.worker == lease.worker,
        jobs.c.attempt == lease.attempt,
    )


def _joined(connection: Connection, key: str) -> Job | None:
    """The job with that key that is done or in flight, with one more who asks for it."""
    states = (*IN_FLIGHT, JobStatus.DONE)
    query = select(jobs).where(jobs.c.key == key, jobs.c.status.in_(states)).limit(1)
    row = connection.execute(query.with_for_update()).one_or_none()
    if row is None:
        return None
    connection.execute(update(jobs).where(jobs.c.id == row.id).values(askers=jobs.c.askers + 1))
    return _job(row)


def _turn(connection: Connection, asker: str, limits: QueueLimits) -> int:
    """The number of a new job.

    Raises:
        QueueFullError: There are too many.
    """
    in_flight = jobs.c.status.in_(IN_FLIGHT)
    if connection.execute(select(func.count()).where(in_flight)).scalar_one() >= limits.of_all:
        raise QueueFullError(f"{limits.of_all:,} plans wait already; try again later", is_of_one=False)
    own = select(func.count(), func.max(jobs.c.turn)).where(in_flight, jobs.c.asker == asker)
    count, last = connection.execute(own).one()
    if count >= limits.of_one:
        message = f"{limits.of_one:,} plans of yours wait already; take some back, or wait until one is done"
        raise QueueFullError(message, is_of_one=True)
    following = connection.execute(select(func.min(jobs.c.turn)).where(jobs.c.status == JobStatus.QUEUED)).scalar()
    return max(following or 0, 0 if last is None else last + 1)


def _request(connection: Connection, job_id: str) -> Mapping[str, Any] | None:
    text = connection.execute(select(questions.c.request).where(questions.c.job_id == job_id)).scalar()
    if text is None:
        return None
    found: Mapping[str, Any] = json.loads(text)
    return found


def _job(row: Row[Any]) -> Job:
    return Job(
        id=row.id,
        key=row.key,
        name=row.name,
        budget=row.budget,
        device=row.device,
        status=JobStatus(row.status),
        created_at=row.created_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
        attempt=row.attempt,
        progress=None if row.progress is None else json.loads(row.progress),
        problem=None if row.problem is None else json.loads(row.problem),
    )


def _tally(row: Row[Any]) -> Tally:
    return Tally(
        jobs=row.jobs,
        oldest_s=row.oldest_s,
        waits=Times(count=row.waits, sum_s=row.waited_s),
        solves=Times(count=row.solves, sum_s=row.solved_s),
    )
