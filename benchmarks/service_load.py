"""How many estimates a second a service answers, how fast it looks plans up, and whether its memory grows.

    ./dev/env python -m benchmarks.service_load --requests 20000

Starts a server of its own on loopback, with a SQLite file in a temporary directory and without rate limits. Estimates
are asked for as fast as the connections allow, each of another run and then all of the same one, which the service
remembers; lookups come at a fixed rate. Latencies are the client's, in the same machine.
"""

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from planner.service.processes import SETTINGS
from planner.service.routes.quick import SPEC
from planner.service.settings import Settings, as_text
from planner.service.store.database import Database
from planner.service.store.jobs import JobStore, Result

UNLIMITED = 10**9
STARTS_WITHIN_S = 120.0
TICKS = 10  # at which memory is looked at
WARM = 200  # requests before those that count
# As `planner serve` starts it.
SERVER = """
import sys, uvicorn
from planner.service.connections import MOST_CONNECTIONS, DeadlineProtocol
uvicorn.run("planner.service.processes:application", factory=True, port=int(sys.argv[1]), workers=int(sys.argv[2]),
    server_header=False, http=DeadlineProtocol, limit_concurrency=MOST_CONNECTIONS, log_level="warning",
    access_log=sys.argv[3] == "log")
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What came of a load: a latency for each request, and how many were not answered with 200."""

    wall_s: float
    latencies_s: Sequence[float]
    failed: int

    def part_s(self, part: float) -> float:
        """The latency within which that part of the requests was answered."""
        ordered = sorted(self.latencies_s)
        return ordered[min(len(ordered) - 1, int(part * len(ordered)))]

    def text(self) -> str:
        rate = len(self.latencies_s) / self.wall_s
        parts = ", ".join(f"p{100 * part:g} {1e3 * self.part_s(part):.1f} ms" for part in (0.5, 0.9, 0.99))
        return f"{len(self.latencies_s):,} requests, {rate:.0f}/s, {parts}, {self.failed} failed"


class Connection:
    """One connection that is kept open."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, request: bytes) -> int:
        """The status of the answer, which is read to its end; 0 when there is none."""
        try:
            if self._streams is None:
                self._streams = await asyncio.open_connection("127.0.0.1", self._port)
            reader, writer = self._streams
            writer.write(request)
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = int(head.partition(b"content-length: ")[2].split(b"\r\n", 1)[0])
            await reader.readexactly(length)
            return int(head.split(b" ", 2)[1])
        except (OSError, asyncio.IncompleteReadError):
            self._streams = None
            return 0


def request(method: str, path: str, body: object = None) -> bytes:
    """An HTTP request as bytes."""
    content = b"" if body is None else json.dumps(body).encode()
    lines = (f"{method} {path} HTTP/1.1", "host: localhost", "content-type: application/json")
    return "\r\n".join((*lines, f"content-length: {len(content)}", "", "")).encode() + content


async def as_fast_as_possible(
    port: int, what: Callable[[int], bytes], *, count: int, connections: int, tick: Callable[[], None]
) -> Load:
    """Each connection asks again as soon as it has its answer."""
    latencies_s: list[float] = []
    statuses: list[int] = []

    async def ask(connection: Connection) -> None:
        while len(statuses) < count:
            began = time.perf_counter()
            statuses.append(await connection.ask(what(len(statuses))))
            latencies_s.append(time.perf_counter() - began)
            if len(statuses) % max(1, count // TICKS) == 0:
                tick()

    return await _timed([ask(Connection(port)) for _ in range(connections)], latencies_s, statuses)


async def at_a_rate(port: int, what: bytes, *, rate: float, for_s: float, connections: int) -> Load:
    """A request every 1/rate s, whether the ones before were answered or not; waiting for a connection counts."""
    latencies_s: list[float] = []
    statuses: list[int] = []
    idle: asyncio.Queue[Connection] = asyncio.Queue()
    for _ in range(connections):
        idle.put_nowait(Connection(port))
    began = time.perf_counter()

    async def ask(number: int) -> None:
        due = began + number / rate
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        connection = await idle.get()
        statuses.append(await connection.ask(what))
        latencies_s.append(time.perf_counter() - due)
        idle.put_nowait(connection)

    return await _timed([ask(number) for number in range(int(rate * for_s))], latencies_s, statuses)


async def _timed(tasks: Sequence[Awaitable[None]], latencies_s: Sequence[float], statuses: Sequence[int]) -> Load:
    began = time.perf_counter()
    await asyncio.gather(*tasks)
    failed = sum(status != 200 for status in statuses)
    return Load(wall_s=time.perf_counter() - began, latencies_s=latencies_s, failed=failed)


@contextmanager
def server(database: str, processes: int, *, logs: bool) -> Iterator[tuple[int, int]]:
    """A server's port and process id."""
    settings = as_text(Settings(database=database, requests_per_minute=UNLIMITED))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    command = [sys.executable, "-c", SERVER, str(port), str(processes), "log" if logs else "none"]
    running = subprocess.Popen(command, env={**os.environ, SETTINGS: settings}, stdout=subprocess.DEVNULL)
    try:
        until = time.monotonic() + STARTS_WITHIN_S
        while asyncio.run(Connection(port).ask(request("GET", "/readyz"))) != 200:
            assert running.poll() is None
            assert time.monotonic() < until
            time.sleep(0.2)
        yield port, running.pid
    finally:
        running.terminate()
        running.wait()


def resident_bytes(root: int) -> int:
    """What a process and all that it started hold of memory; what they share counts for each."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(entry.parent.name)] = int(entry.read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has ended
            continue
    family, found = [root], 0
    for process in family:
        family.extend(child for child, parent in parents.items() if parent == process)
        found += int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return found


def plan_done(database: str) -> str:
    """The id of a job that is done, as large as Llama 3 8B's."""
    opened = Database(database)
    opened.migrate()
    jobs = JobStore(opened)
    job = jobs.submit(key="benchmark", name="benchmark", request={"spec": SPEC, "name": "b", "budget": "40GB"})
    lease = jobs.lease("benchmark")
    assert lease is not None
    times = dict.fromkeys(("out_start_s", "out_done_s", "back_start_s", "back_done_s"), 0.123456789012)
    copy = {"op": "aten.mm.default", "bytes": 170_000_000, **times, "gone_at": "before mlp, mul", "back_at": "mlp, mul"}
    copies = [{"module": f"model.layers.{number}.mlp.down_proj", **copy} for number in range(138)]
    result = Result(summary={"link": {"copies": copies}}, text="x" * 5_000, plan="x" * 14_000, report="x" * 300_000)
    assert jobs.finish(lease, result)
    opened.close()
    return job.id


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=20_000, help="estimates of one run")
    parser.add_argument("--different", type=int, default=1_000, help="estimates of different runs")
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--processes", type=int, default=4, help="that answer")
    parser.add_argument("--rate", type=float, default=100.0, help="lookups a second")
    parser.add_argument("--seconds", type=float, default=30.0, help="of lookups")
    parser.add_argument("--logs", action="store_true", help="with a line for each request, as planner serve has it")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        database = f"sqlite:///{folder}/planner.db"
        job_id = plan_done(database)
        with server(database, options.processes, logs=options.logs) as (port, process):
            print(f"{os.cpu_count()} CPUs, load average {os.getloadavg()[0]:.1f}, {options.processes} processes")
            lookup = request("GET", f"/v1/plans/{job_id}")
            memory: list[int] = []

            def load(what: Callable[[int], bytes], count: int) -> Load:
                asked = as_fast_as_possible(
                    port,
                    what,
                    count=count,
                    connections=options.connections,
                    tick=lambda: memory.append(resident_bytes(process)),
                )
                return asyncio.run(asked)

            load(lambda _: lookup, WARM)
            steady = at_a_rate(port, lookup, rate=options.rate, for_s=options.seconds, connections=options.connections)
            print(f"lookups at {options.rate:g}/s: {asyncio.run(steady).text()}", flush=True)
            for what, asked_for, count in (
                ("different runs", estimate_of, options.different),
                ("one run", lambda _: estimate_of(0), options.requests),
            ):
                memory.clear()
                print(f"estimates of {what}: {load(asked_for, count).text()}")
                print(f"memory meanwhile, MB: {', '.join(f'{size / 1e6:.0f}' for size in memory)}", flush=True)


def estimate_of(number: int) -> bytes:
    """A request for an estimate, for each number another."""
    return request("POST", "/v1/estimate", {"spec": SPEC.replace("8192", str(1024 + 8 * number))})


if __name__ == "__main__":
    main()
