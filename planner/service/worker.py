"""A worker: takes a job, has it solved in a process of its own, and brings back what came of it.

It keeps no state that is not in the database. Killed at any moment it loses nothing but the time spent: its lease runs
out, and another one begins again. While the database is away it waits; a result that cannot be written yet is kept.
"""

import json
import os
import queue
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from sqlalchemy.exc import DBAPIError

from planner.service.problems import problem
from planner.service.requests import PlanRequest
from planner.service.settings import Settings
from planner.service.store.jobs import LEASE_S, JobStore, Lease, Result

T = TypeVar("T")
Log = Callable[[str], None]

POLL_S = 0.5  # between looks for a job
RENEW_S = LEASE_S / 6  # several tries before a lease runs out
RETRY_S = 1.0  # while the database is away
_STDERR_CHARACTERS = 2000  # of what a child said last, for the log


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outcome:
    """What came of a job: one of the three, or none of them when it was stopped."""

    result: Result | None = None
    problem: Mapping[str, Any] | None = None


class Worker:
    """Takes jobs until it is told to stop."""

    def __init__(self, store: JobStore, settings: Settings, log: Log) -> None:
        self._store = store
        self._settings = settings
        self._log = log
        self._stopping = threading.Event()
        self._name = f"{socket.gethostname()}:{os.getpid()}"

    def stop(self) -> None:
        """Lets it end: a job in work is put back."""
        self._stopping.set()

    def run(self) -> None:
        """Takes jobs until `stop`."""
        while not self._stopping.is_set():
            lease = self._patiently(lambda: self._store.lease(self._name))
            if lease is None:
                self._stopping.wait(POLL_S)
            else:
                self._work(lease)

    def _work(self, lease: Lease) -> None:
        self._log(f"job {lease.job.id}: attempt {lease.attempt}")
        with _Child(PlanRequest(**lease.job.request), self._settings) as child:
            outcome = self._watch(child, lease)
        if outcome.result is not None:
            result = outcome.result
            taken = self._patiently(lambda: self._store.finish(lease, result))
        elif outcome.problem is not None:
            found = outcome.problem
            taken = self._patiently(lambda: self._store.fail(lease, found))
        elif self._stopping.is_set():
            self._patiently(lambda: self._store.give_back(lease))
            taken = None
        else:
            taken = self._patiently(lambda: self._store.stop(lease))
        what = {True: "ended", False: "no longer ours", None: "put back"}[taken]
        self._log(f"job {lease.job.id}: {what}")

    def _watch(self, child: "_Child", lease: Lease) -> _Outcome:
        """What comes of a child, whose lease is renewed meanwhile; nothing when it was cancelled, lost or stopped."""
        began = renewed = time.monotonic()
        progress: list[str] = []
        while not self._stopping.is_set():
            record = child.next_record(timeout_s=POLL_S)
            now = time.monotonic()
            if record is not None and "progress" in record:
                progress.append(str(record["progress"]))
            if record is not None and "result" in record:
                return _Outcome(result=Result(**record["result"]))
            if record is not None and "problem" in record:
                return _Outcome(problem=record["problem"])
            if record is None and child.has_ended():
                self._log(f"job {lease.job.id}: its process ended: {child.last_words()}")
                return _Outcome(problem=child.why_it_ended())
            if now - began > self._settings.limits.wall_s:
                limit = f"the solve took longer than the {self._settings.limits.wall_s:g} s that one may take here"
                return _Outcome(problem=problem(422, "A limit was reached", limit))
            if record is not None or now - renewed > RENEW_S:
                renewed = now
                if not self._renew(lease, progress):
                    return _Outcome()
        return _Outcome()

    def _renew(self, lease: Lease, progress: list[str]) -> bool:
        """Whether to go on; also while the database is away, since the lease may still hold when it is back."""
        try:
            return self._store.renew(lease, {"lines": progress[-20:]})
        except DBAPIError as error:
            self._log(f"the database is away: {type(error.orig).__name__}")
            return True

    def _patiently(self, operation: Callable[[], T]) -> T:
        """What an operation on the database returns, however long that is away."""
        while True:
            try:
                return operation()
            except DBAPIError as error:
                self._log(f"the database is away: {type(error.orig).__name__}")
                time.sleep(RETRY_S)


class _Child:
    """The process that solves a job, with its limits; leaving the context ends it."""

    def __init__(self, request: PlanRequest, settings: Settings) -> None:
        self._limits = settings.limits
        self._job = json.dumps({"request": asdict(request), "allowed": sorted(settings.allowed)})
        self._records: queue.SimpleQueue[Mapping[str, Any]] = queue.SimpleQueue()
        self._stderr = ""

    def __enter__(self) -> "_Child":
        self._process = subprocess.Popen(
            [sys.executable, "-m", "planner.service.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # so that it can be ended with all that it started
            preexec_fn=self._limit,
            env={**os.environ, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""},
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
        with suppress(ProcessLookupError):  # where it has ended by itself
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for thread in self._threads:
            thread.join()

    def _limit(self) -> None:
        resource.setrlimit(resource.RLIMIT_AS, (self._limits.memory_bytes, self._limits.memory_bytes))
        seconds = int(self._limits.wall_s * (os.cpu_count() or 1)) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._records.put(json.loads(line))

    def _listen(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._stderr = (self._stderr + line)[-_STDERR_CHARACTERS:]

    def next_record(self, *, timeout_s: float) -> Mapping[str, Any] | None:
        """What it says next, or None when it says nothing for so long."""
        try:
            return self._records.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def has_ended(self) -> bool:
        """Whether it has ended, and all that it said was heard."""
        return self._process.poll() is not None and not self._threads[0].is_alive() and self._records.empty()

    def last_words(self) -> str:
        """The end of what it wrote to stderr, for the operator's log alone: it may name paths."""
        return self._stderr

    def why_it_ended(self) -> Mapping[str, Any]:
        """The problem of a job whose process ended without an answer."""
        code = self._process.returncode
        if "MemoryError" in self._stderr or "bad_alloc" in self._stderr or code == -signal.SIGABRT:
            limit = f"the solve needs more than the {self._limits.memory_bytes / 1e9:.0f} GB that one may take here"
            return problem(422, "A limit was reached", limit)
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
        return problem(500, "The solve failed", f"its process ended with {how} and without an answer")
