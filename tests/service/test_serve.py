"""`planner serve` as a command: one that is told to end and one that is killed leave nothing behind."""

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

pytest.importorskip("uvicorn")

from planner.cli import main
from tests.service.processes import Server, children_of, eventually, is_running, running, start_command


@pytest.fixture(params=[1, 2])
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    """The command with one worker, and so many processes that answer."""
    started = start_command(f"sqlite:///{tmp_path}/p.db", tmp_path / "log", "--processes", str(request.param))
    with running(started) as server:
        yield server


def descendants(pid: int) -> set[int]:
    return {pid}.union(*(descendants(child) for child in children_of(pid)))


def test_a_host_that_is_none_is_an_error_in_one_line(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path}/p.db"
    CliRunner().invoke(main, ["token", "create", "me", "--db", database])

    result = CliRunner().invoke(main, ["serve", "--host", "no such host", "--db", database])

    assert 2 == result.exit_code
    assert result.stderr.startswith("planner: error: cannot listen on no such host, port 8080: ")


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_what_ends_the_server_ends_all_of_it(served: Server, how: signal.Signals) -> None:
    processes = descendants(served.process.pid)
    assert 4 <= len(processes)  # it, its worker, and two that answer at once
    served.process.send_signal(how)
    served.process.wait(60)
    eventually(lambda: not [process for process in processes if is_running(process)])
    assert "Traceback" not in served.logged()


@pytest.mark.slow
def test_a_worker_that_dies_is_started_anew(served: Server) -> None:
    before = set(children_of(served.process.pid))
    (worker,) = [child for child in before if b"processes import main" in Path(f"/proc/{child}/cmdline").read_bytes()]
    subprocess.run(["kill", "-9", str(worker)], check=True)
    eventually(lambda: "starting another" in served.logged())
    eventually(lambda: len(set(children_of(served.process.pid)) - {worker}) >= len(before))
