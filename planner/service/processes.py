"""The processes of a service: those that answer, started by uvicorn, and those that solve, kept alive here."""

import logging
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from types import FrameType

import uvicorn
from fastapi import FastAPI

from planner.errors import PlannerError
from planner.service.app import create_app
from planner.service.confinement import die_with
from planner.service.connections import SHUTDOWN_S, DeadlineProtocol, allow_open_files
from planner.service.redaction import discreet
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
    allow_open_files()
    logging.getLogger("uvicorn.access").addFilter(discreet)
    return create_app(from_text(os.environ[SETTINGS]), _say)


class AddressError(PlannerError):
    """An address that cannot be listened on."""


def check_address(host: str, port: int) -> None:
    """Nothing, where the address can be listened on: to be asked before anything is started.

    Raises:
        AddressError: It is no address of this machine, or is in use.
    """
    try:
        for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server will, of connections past
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind(address)
                probe.listen()
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise AddressError(f"cannot listen on {host}, port {port}: {why}; choose another --port or --host") from None


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
        ws="none",
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
