"""The processes of a service: those that answer, started by uvicorn, and those that solve, kept alive here."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from types import FrameType

import uvicorn
from fastapi import FastAPI

from planner.service.app import create_app
from planner.service.confinement import die_with
from planner.service.connections import MOST_CONNECTIONS, SHUTDOWN_S, DeadlineProtocol
from planner.service.settings import Settings, as_text, from_text
from planner.service.store.database import Database
from planner.service.store.jobs import JobStore
from planner.service.worker import SOLVER, Log, Worker

SETTINGS = "PLANNER_SERVICE_SETTINGS"  # the environment variable that processes get theirs in
_RESTART_S = 2.0  # before a worker that died is started again
_GRACE_S = 10.0  # for workers to put their jobs back


def application() -> FastAPI:
    """The application with the settings that this process was started with."""
    parent = multiprocessing.parent_process()
    if parent is not None and parent.pid is not None:  # one of several: else it would hold the port on its own
        die_with(parent.pid)
    return create_app(from_text(os.environ[SETTINGS]), _say)


def listen(host: str, port: int, processes: int) -> None:
    """Answers requests until SIGTERM or Ctrl-C, with the settings in the environment."""
    uvicorn.run(
        "planner.service.processes:application",
        factory=True,
        host=host,
        port=port,
        workers=processes,
        server_header=False,
        http=DeadlineProtocol,
        limit_concurrency=MOST_CONNECTIONS,
        timeout_graceful_shutdown=SHUTDOWN_S,
    )


def work(settings: Settings, log: Log, solver: Sequence[str] = SOLVER) -> None:
    """Takes jobs until SIGTERM or Ctrl-C, which put the one in work back; see `Worker`."""
    database = Database(settings.database)
    worker = Worker(JobStore(database), settings, log, solver)

    def stop(signum: int, frame: FrameType | None) -> None:
        worker.stop()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    worker.run()
    database.close()


class LocalWorkers:
    """Worker processes of this one: started anew when they die, and ended with it, even when it is killed."""

    def __init__(self, count: int, settings: Settings, log: Log) -> None:
        self._count = count
        self._environment = {**os.environ, SETTINGS: as_text(settings)}
        self._log = log
        self._ending = threading.Event()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._thread = threading.Thread(target=self._keep_alive, daemon=True)

    def __enter__(self) -> "LocalWorkers":
        self._processes = [self._start() for _ in range(self._count)]
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()

    def _start(self) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-c", "from planner.service.processes import main; main()", str(os.getpid())]
        # A session of its own: Ctrl-C is for this process, which then tells its workers in its own time.
        return subprocess.Popen(command, env=self._environment, start_new_session=True)

    def _keep_alive(self) -> None:
        while not self._ending.wait(_RESTART_S):
            for number, process in enumerate(self._processes):
                if process.poll() is not None:
                    self._log(f"worker {process.pid} ended with status {process.returncode}; starting another")
                    self._processes[number] = self._start()
        # Here and not where the context ends: for the kernel, a thread is the parent of what it has started, so those
        # that were started anew would be killed with this one.
        for process in self._processes:
            process.terminate()
        _wait(self._processes)


def _wait(processes: Sequence["subprocess.Popen[bytes]"]) -> None:
    for process in processes:
        try:
            process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def main() -> None:
    """A local worker, with the settings that it was started with."""
    die_with(int(sys.argv[1]))
    work(from_text(os.environ[SETTINGS]), _say)


def _say(line: str) -> None:
    print(f"planner: {line}", file=sys.stderr, flush=True)
