"""A worker: takes a job, has it solved in a process of its own, and brings back what came of it.

It keeps no state that is not in the database. Killed at any moment it loses nothing but the time spent: its lease runs
out, and another one begins again. While the database is away it waits; a result that cannot be written yet is kept, and
one that can never be written is a failure of the job.
"""

import json
import os
import queue
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any, TypeVar

from sqlalchemy.exc import DataError, DBAPIError

from planner.service.confinement import bare_environment
from planner.service.problems import limit_reached, problem
from planner.service.redaction import one_line
from planner.service.settings import Settings
from planner.service.store.jobs import LEASE_S, JobStatus, JobStore, Lease, Result

T = TypeVar("T")
Log = Callable[[str], None]

SOLVER = (sys.executable, "-m", "planner.service.child")
POLL_S = 0.5  # between looks for a job
RENEW_S = LEASE_S / 6  # several tries before a lease runs out
RETRY_S = 1.0  # while the database is away
_STDERR_CHARACTERS = 2000  # of what a child said last, for the log
_LINES = 20  # of progress that are kept


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outcome:
    """What came of a job: one of the three, or none of them when it was stopped."""

    result: Result | None = None
    problem: Mapping[str, Any] | None = None


class Worker:
    """Takes jobs until it is told to stop."""

    def __init__(self, store: JobStore, settings: Settings, log: Log, solver: Sequence[str] = SOLVER) -> None:
        """Takes nothing yet. `solver` is the command that solves a job; it is given the worker's process id."""
        self._solver = solver
        self._store = store
        self._settings = settings
        self._log = log
        self._stopping = threading.Event()
        # A name that none has had before: with the attempt it tells whose a lease is.
        self._name = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"

    def stop(self) -> None:
        """Lets it end: a job in work is put back."""
        self._stopping.set()

    def run(self) -> None:
        """Takes jobs until `stop`."""
        while not self._stopping.is_set():
            try:
                lease = self._patiently(lambda: self._store.lease(self._name))
                if lease is None:
                    self._stopping.wait(POLL_S)
                else:
                    self._work(lease)
            except _StoppedError:
                return  # a lease that is still held runs out

    def _work(self, lease: Lease) -> None:
        began = time.monotonic()
        self._log(f"job {lease.job.id}: begun, attempt {lease.attempt}")
        with _Child(self._solver, lease.request, self._settings) as child:
            outcome = self._watch(child, lease)
        status = self._bring_back(lease, outcome)
        why = "" if outcome.problem is None else f": {one_line(outcome.problem['detail'])}"
        self._log(f"job {lease.job.id}: {status or 'lost'} after {time.monotonic() - began:.1f} s{why}")

    def _bring_back(self, lease: Lease, outcome: _Outcome) -> JobStatus | None:
        """Where the job stands now; None when it was another worker's meanwhile."""
        if outcome.result is not None:
            return self._finish(lease, outcome.result)
        if outcome.problem is not None:
            return self._fail(lease, outcome.problem)
        return self._patiently(lambda: self._store.give_back(lease))

    def _finish(self, lease: Lease, result: Result) -> JobStatus | None:
        try:
            taken = self._patiently(lambda: self._store.finish(lease, result))
        except DataError as error:
            self._log(f"job {lease.job.id}: its result cannot be kept: {one_line(str(error.orig))}")
            return self._fail(lease, problem(500, "The solve failed", "the database cannot keep its result"))
        return JobStatus.DONE if taken else None

    def _fail(self, lease: Lease, found: Mapping[str, Any]) -> JobStatus | None:
        return JobStatus.FAILED if self._patiently(lambda: self._store.fail(lease, found)) else None

    def _watch(self, child: "_Child", lease: Lease) -> _Outcome:
        """What comes of a child, whose lease is renewed meanwhile; nothing when it was cancelled, lost or stopped."""
        began = renewed = time.monotonic()
        progress: list[str] = []
        while not self._stopping.is_set():
            record = child.next_record(timeout_s=POLL_S)
            now = time.monotonic()
            if record is not None and "progress" in record:
                progress = [*progress, str(record["progress"])][-_LINES:]
            if record is not None and "result" in record:
                return _Outcome(result=Result(**record["result"]))
            if record is not None and "problem" in record:
                return _Outcome(problem=record["problem"])
            if record is None and child.has_ended():
                self._log(f"job {lease.job.id}: its process ended: {one_line(child.last_words())}")
                return _Outcome(problem=child.why_it_ended())
            if now - began > self._settings.limits.wall_s:
                limit = f"the solve took longer than the {self._settings.limits.wall_s:g} s that one may take here"
                return _Outcome(problem=limit_reached(limit))
            if record is not None or now - renewed > RENEW_S:
                renewed = now
                if not self._renew(lease, progress):
                    return _Outcome()
        return _Outcome()

    def _renew(self, lease: Lease, progress: list[str]) -> bool:
        """Whether to go on; also while the database is away, since the lease may still hold when it is back."""
        try:
            return self._store.renew(lease, {"lines": progress})
        except DBAPIError as error:
            self._log(f"the database is away: {one_line(str(error.orig))}")
            return True

    def _patiently(self, operation: Callable[[], T]) -> T:
        """What an operation on the database returns, however long that is away.

        Raises:
            DataError: The database will never take it.
            _StoppedError: The worker is to end, and the database is away.
        """
        while True:
            try:
                return operation()
            except DataError:
                raise
            except DBAPIError as error:
                self._log(f"the database is away: {one_line(str(error.orig))}")
                if self._stopping.wait(RETRY_S):
                    raise _StoppedError from error


class _StoppedError(Exception):
    """The worker is to end, and what it would still write cannot be written."""


class _Child:
    """The process that solves a job, with its limits; leaving the context ends it."""

    def __init__(self, solver: Sequence[str], request: Mapping[str, Any], settings: Settings) -> None:
        self._command = [*solver, str(os.getpid())]
        self._limits = settings.limits
        self._job = json.dumps(
            {
                "request": request,
                "allowed": sorted(settings.allowed),
                "memory_bytes": settings.limits.memory_bytes,
                "cpu_s": settings.limits.cpu_s,
            }
        )
        self._records: queue.SimpleQueue[Mapping[str, Any]] = queue.SimpleQueue()
        self._stderr = ""

    def __enter__(self) -> "_Child":
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,  # so that it can be ended with all that it started
            env={**bare_environment(), "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""},
        )
        self._threads = [threading.Thread(target=target, daemon=True) for target in (self._read, self._listen)]
        for thread in self._threads:
            thread.start()
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # where it has ended already, which `has_ended` will say
            self._process.stdin.write(self._job)
            self._process.stdin.close()
        return self

    def __exit__(self, *_: object) -> None:
        self._kill()
        self._process.wait()
        for thread in self._threads:
            thread.join()
        for file in (self._process.stdout, self._process.stderr):
            assert file is not None
            file.close()

    def _kill(self) -> None:
        """Ends it and all that it started."""
        with suppress(ProcessLookupError):  # where they have ended by themselves
            os.killpg(self._process.pid, signal.SIGKILL)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._records.put(json.loads(line))

    def _listen(self) -> None:
        assert self._process.stderr is not None
        for part in _parts(self._process.stderr):
            self._stderr = (self._stderr + part)[-_STDERR_CHARACTERS:]

    def next_record(self, *, timeout_s: float) -> Mapping[str, Any] | None:
        """What it says next, or None when it says nothing for so long."""
        try:
            return self._records.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def has_ended(self) -> bool:
        """Whether it has ended, and all that it said was heard."""
        if self._process.poll() is None:
            return False
        is_heard = not any(thread.is_alive() for thread in self._threads)
        if not is_heard:
            self._kill()  # what it started and left behind would keep its pipes open
        return is_heard and self._records.empty()

    def last_words(self) -> str:
        """The end of what it wrote to stderr, for the operator's log alone: it may name paths."""
        return self._stderr

    def why_it_ended(self) -> Mapping[str, Any]:
        """The problem of a job whose process ended without an answer."""
        code = self._process.returncode
        if any(sign in self._stderr for sign in _OUT_OF_MEMORY):
            limit = f"the solve needs more than the {self._limits.memory_bytes / 1e9:.1f} GB that one may take here"
            return limit_reached(limit)
        if code == -signal.SIGXCPU:
            limit = f"the solve took more than the {self._limits.cpu_s:g} s of CPU time that one may take here"
            return limit_reached(limit)
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
        return problem(500, "The solve failed", f"its process ended with {how} and without an answer")


# What Python, C++ and torch say, in turn, when they are refused memory.
_OUT_OF_MEMORY = ("MemoryError", "bad_alloc", "allocate memory", "can't start new thread")


def _parts(file: IO[str]) -> Iterator[str]:
    """What is written to a text file, as it comes: a line of it may have no end."""
    while part := file.read(_STDERR_CHARACTERS):
        yield part
