"""`planner serve` as a command: one that is told to end and one that is killed leave nothing behind."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("uvicorn")

from tests.service.conftest import free_port
from tests.service.processes import Server, children_of, environment, eventually, is_running, stop


def is_up(server: Server) -> bool:
    """Whether it answers, with all its processes begun."""
    assert server.process.poll() is None, server.logged()
    try:
        return server.get("/readyz").status == 200
    except OSError:
        return False


@pytest.fixture(params=[1, 2])
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    """The command with one worker, and so many processes that answer."""
    port, log = free_port(), tmp_path / "log"
    command = [sys.executable, "-c", "from planner.cli import main; main()", "serve", "--port", str(port)]
    command += ["--processes", str(request.param), "--db", f"sqlite:///{tmp_path}/p.db"]
    with log.open("ab") as file:
        process = subprocess.Popen(command, env=environment(), stdout=file, stderr=file)
    server = Server(port=port, process=process, log=log)
    yield server
    stop(process)


def descendants(pid: int) -> set[int]:
    return {pid}.union(*(descendants(child) for child in children_of(pid)))


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_what_ends_the_server_ends_all_of_it(served: Server, how: signal.Signals) -> None:
    eventually(lambda: is_up(served))
    processes = descendants(served.process.pid)
    assert 4 <= len(processes)  # it, its worker, and two that answer at once
    served.process.send_signal(how)
    served.process.wait(60)
    eventually(lambda: not [process for process in processes if is_running(process)])
    assert "Traceback" not in served.logged()


@pytest.mark.slow
def test_a_worker_that_dies_is_started_anew(served: Server) -> None:
    eventually(lambda: is_up(served))
    before = set(children_of(served.process.pid))
    (worker,) = [child for child in before if b"processes import main" in Path(f"/proc/{child}/cmdline").read_bytes()]
    subprocess.run(["kill", "-9", str(worker)], check=True)
    eventually(lambda: "starting another" in served.logged())
    eventually(lambda: len(set(children_of(served.process.pid)) - {worker}) >= len(before))
