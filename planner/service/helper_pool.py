"""What the service answers at once: lint findings, estimates, and whether a plan can be asked for.

The work is done by helpers, processes with limits: what others send may take long to read, and a thread that reads it
can be neither ended nor kept from delaying all others.
"""

import hashlib
import json
import signal
import subprocess
import sys
import threading
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import Any

from planner.errors import PlannerError
from planner.service.confinement import OUT_OF_MEMORY_STATUS, bare_environment
from planner.service.problems import ProblemError, limit_reached, problem
from planner.service.requests import PlanRequest
from planner.service.settings import HelperLimits, Settings

_MOST_KNOWN = 256  # answers that are remembered, in each server process: 16 MB at most
_LONGEST_KNOWN = 64 * 2**10  # of one; an estimate has 10 KB


class HelperPool:
    """Helpers, and the questions for them."""

    def __init__(self, settings: Settings) -> None:
        self._allowed = sorted(settings.allowed)
        self._known = _Known()
        self._helpers = _Helpers(settings.helpers)

    def close(self) -> None:
        """Ends the helpers that have nothing to do; others end with their question, or with this process."""
        self._helpers.close()

    def lint(self, client: str, **asked: Any) -> dict[str, Any]:
        """The findings in a config's text; see `planner.service.helper.lint`."""
        found: dict[str, Any] = self._ask(client, "lint", asked)
        return found

    def estimate(self, client: str, *, spec: str, device: str | None) -> dict[str, Any]:
        """The estimate of a spec's text; see `planner.service.helper.estimate`."""
        found: dict[str, Any] = self._ask(
            client, "estimate", {"spec": spec, "device": device, "allowed": self._allowed}
        )
        return found

    def key(self, client: str, request: PlanRequest) -> str:
        """The key of a request for a plan; see `planner.service.helper.key`."""
        found: str = self._ask(client, "key", {"request": asdict(request), "allowed": self._allowed})
        return found

    def _ask(self, client: str, what: str, of: Mapping[str, Any]) -> Any:
        """The answer of a helper.

        Raises:
            ProblemError: There is none: the input cannot be used, a limit was reached, or all helpers are busy.
        """
        question = {"what": what, "of": of}
        digest = hashlib.sha256(json.dumps(question).encode()).digest()
        # Files that specs may name can change meanwhile.
        known = None if self._allowed else self._known.get(digest)
        if known is not None:
            return json.loads(known)
        with self._helpers.one(client) as helper:
            found = helper.ask(question)
        if "problem" in found:
            raise ProblemError(found["problem"])
        self._known.put(digest, json.dumps(found["answer"]))
        return found["answer"]


class _Helpers:
    """Helper processes, and who has them: no client has all, nor all places to wait."""

    def __init__(self, limits: HelperLimits) -> None:
        self._limits = limits
        self._most_of_one = max(1, limits.count - 1)
        self._changed = threading.Condition()
        self._idle = [_Helper(limits) for _ in range(limits.count)]
        self._working: Counter[str] = Counter()
        self._waiting: Counter[str] = Counter()

    def close(self) -> None:
        """Ends those that are idle."""
        with self._changed:
            while self._idle:
                self._idle.pop().end()

    @contextmanager
    def one(self, client: str) -> Iterator["_Helper"]:
        """A helper that answers this client alone meanwhile.

        Raises:
            ProblemError: There is none for too long, or too many wait.
        """
        helper = self._taken(client)
        try:
            yield helper
        finally:
            with self._changed:
                _count(self._working, client, -1)
                self._idle.append(helper)
                self._changed.notify_all()

    def _taken(self, client: str) -> "_Helper":
        with self._changed:
            if not self._is_free(client):
                is_full = self._waiting.total() >= self._limits.most_waiting
                if is_full or self._waiting[client] >= self._limits.most_waiting_of_one:
                    raise _busy()
                _count(self._waiting, client, 1)
                is_free = self._changed.wait_for(lambda: self._is_free(client), self._limits.longest_wait_s)
                _count(self._waiting, client, -1)
                if not is_free:
                    raise _busy()
            _count(self._working, client, 1)
            return self._idle.pop()

    def _is_free(self, client: str) -> bool:
        return bool(self._idle) and self._working[client] < self._most_of_one


def _count(counter: Counter[str], client: str, more: int) -> None:
    """Adds to a client's count, and forgets clients that have none."""
    counter[client] += more
    if not counter[client]:
        del counter[client]


def _busy() -> PlannerError:
    return ProblemError(problem(503, "Busy", "all that could answer this are at work; try again"))


class _Known:
    """Answers that were given, the latest: the text alone decides them, and pages and CI jobs ask the same again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._texts: OrderedDict[bytes, str] = OrderedDict()

    def get(self, digest: bytes) -> str | None:
        with self._lock:
            found = self._texts.get(digest)
            if found is not None:
                self._texts.move_to_end(digest)
            return found

    def put(self, digest: bytes, text: str) -> None:
        if len(text) > _LONGEST_KNOWN:
            return
        with self._lock:
            self._texts[digest] = text
            if len(self._texts) > _MOST_KNOWN:
                self._texts.popitem(last=False)


class _Helper:
    """A helper process, and another one in its place when it has ended."""

    def __init__(self, limits: HelperLimits) -> None:
        self._limits = limits
        self._process = self._started()

    def _started(self) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "planner.service.helper"),
                *(str(self._limits.memory_bytes), str(self._limits.deadline_s)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for the server
            env=bare_environment(),
        )

    def end(self) -> None:
        """Ends the process, once it has answered."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def ask(self, question: Mapping[str, Any]) -> Mapping[str, Any]:
        """Its answer, or why there is none."""
        if self._process.poll() is not None:  # something else ended it while it had nothing to do
            self.end()
            self._process = self._started()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        line = ""
        with suppress(BrokenPipeError):  # where it has ended, which the missing answer says
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        if line.endswith("\n"):
            found: Mapping[str, Any] = json.loads(line)
            return found
        self.end()
        why = self._why_it_ended()
        self._process = self._started()  # now, so that the next question need not wait for it
        return {"problem": why}

    def _why_it_ended(self) -> Mapping[str, Any]:
        status = self._process.returncode
        if status == -signal.SIGALRM:
            limit = f"reading this takes longer than the {self._limits.deadline_s:g} s that it may"
            return limit_reached(limit)
        if status == OUT_OF_MEMORY_STATUS:
            limit = f"reading this takes more than the {self._limits.memory_bytes / 1e9:.1f} GB that it may"
            return limit_reached(limit)
        return problem(503, "Interrupted", "what worked on this has ended; try again")
