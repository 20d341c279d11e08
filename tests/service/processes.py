"""Real servers and workers for tests: processes of their own, on free ports of loopback."""

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from planner.service.processes import SETTINGS
from planner.service.settings import QueueLimits, Settings, as_text
from tests.service.conftest import free_port

COMMAND = (sys.executable, "-c", "from planner.cli import main; main()")
START_S = 120.0  # on a machine that is busy with other tests


def spec_of(function: str = "tiny", **arguments: Any) -> str:
    """The spec of a model that `tests.service.factories` makes."""
    model = {"factory": f"tests.service.factories:{function}", "arguments": arguments}
    return json.dumps(
        {
            "model": model,
            "inputs": {"input": {"shape": [4, 16], "dtype": "float32"}},
            "loss": "mean",
            "device": {"memory": "1GB"},
        }
    )


def tiny(width: int) -> dict[str, Any]:
    """A request for a plan that is solved for in a moment; each width is another question."""
    return {"spec": spec_of(width=width), "budget": "1GB", "name": f"tiny {width}", "time_limit": 5}


ALLOWED = ("tests.service.factories:tiny", "tests.service.factories:greedy", "tests.service.factories:endless")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An answer, read to its end."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def data(self) -> Any:
        return json.loads(self.body)


@dataclass(slots=True, kw_only=True)
class Server:
    """A server that is running."""

    port: int
    process: subprocess.Popen[bytes]
    log: Path
    headers: dict[str, str] = field(default_factory=dict)

    def ask(self, method: str, path: str, body: bytes | Any = None, headers: Mapping[str, str] | None = None) -> Answer:
        """The answer to a request; what is not bytes is sent as JSON."""
        sent = {**self.headers, **(headers or {})}
        if body is not None:
            sent = {"content-type": "application/json", **sent}
        if not isinstance(body, bytes | None):
            body = json.dumps(body).encode()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body=body, headers=sent)
            response = connection.getresponse()
            names = {name.lower(): value for name, value in response.getheaders()}
            return Answer(status=response.status, headers=names, body=response.read())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask("GET", path, headers=headers)

    def post(self, path: str, body: Any, **headers: str) -> Answer:
        return self.ask("POST", path, body, headers=headers)

    def logged(self) -> str:
        return self.log.read_text()


def settings_for(url: str, **more: Any) -> Settings:
    many = {"requests_per_minute": 100_000, "queue": QueueLimits(of_one=100_000, of_all=100_000)}
    return Settings(database=url, allowed=frozenset(ALLOWED), **{**many, **more})


def environment(**more: str) -> dict[str, str]:
    root = str(Path(__file__).parents[2])
    return {**os.environ, "PYTHONPATH": root, "PYTHONWARNINGS": "default", **more}


def eventually(what: Callable[[], Any], *, within_s: float = START_S) -> Any:
    """What a function returns once that is true."""
    until = time.monotonic() + within_s
    while True:
        found = what()
        if found:
            return found
        assert time.monotonic() < until, f"still {found!r} after {within_s} s"
        time.sleep(0.05)


_SERVE = "import sys; from planner.service.processes import listen; listen('127.0.0.1', int(sys.argv[1]), 1)"
_WORK = "from planner.service.processes import main; main()"


def start_server(settings: Settings, log: Path, port: int | None = None) -> Server:
    """A server without workers; it may not answer yet."""
    port = port or free_port()
    return _start(port, log, sys.executable, "-c", _SERVE, str(port), **{SETTINGS: as_text(settings)})


def start_command(database: str, log: Path, *options: str) -> Server:
    """`planner serve`, as users start it; it may not answer yet."""
    port = free_port()
    return _start(port, log, *COMMAND, "serve", "--db", database, "--port", str(port), *options)


def _start(port: int, log: Path, *command: str, **variables: str) -> Server:
    with log.open("ab") as file:
        process = subprocess.Popen(command, env=environment(**variables), stdout=file, stderr=file)
    return Server(port=port, process=process, log=log)


def answers(server: Server) -> bool:
    """Whether it is up, with all its processes begun."""
    assert server.process.poll() is None, server.logged()
    try:
        return server.get("/readyz").status == 200
    except OSError:
        return False


@contextmanager
def running(server: Server) -> Iterator[Server]:
    """A server that was started, once it answers; it is stopped afterwards."""
    try:
        eventually(lambda: answers(server))
        yield server
    finally:
        stop(server.process)


def serving(settings: Settings, log: Path) -> AbstractContextManager[Server]:
    """A server that answers, without workers."""
    return running(start_server(settings, log))


def start_worker(settings: Settings, log: Path, *, is_stub: bool = False) -> subprocess.Popen[bytes]:
    """A worker; its jobs are solved, or `tests.service.stub` pretends so."""
    command = ["-m", "tests.service.stub", "work"] if is_stub else ["-c", _WORK]
    with log.open("ab") as file:
        return subprocess.Popen(
            [sys.executable, *command, str(os.getpid())],
            env=environment(**{SETTINGS: as_text(settings)}),
            stdout=file,
            stderr=file,
        )


@contextmanager
def working(settings: Settings, log: Path, *, is_stub: bool = False) -> Iterator[subprocess.Popen[bytes]]:
    """A worker, meanwhile."""
    process = start_worker(settings, log, is_stub=is_stub)
    try:
        yield process
    finally:
        stop(process)


def stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def children_of(pid: int) -> tuple[int, ...]:
    """Processes that a process has started and that are there."""
    found = " ".join(path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children"))  # of each thread
    return tuple(int(child) for child in found.split())


def is_running(pid: int) -> bool:
    """Whether there is such a process that has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
