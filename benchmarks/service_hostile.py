"""Attacks a server of its own, and shows what each attack was answered while others asked on.

    ./dev/env python -m benchmarks.service_hostile
    ./dev/env python -m benchmarks.service_hostile --only "300 plans"

It starts `planner serve --workers 1`, with solves that may take 20 s, and asks from several addresses of loopback,
which Linux has: attacks come from one, and from another one a lookup of a plan and an estimate of a run, by turns. Of
each attack it prints what came back and when, what the server's process holds in memory afterwards, and the longest
that the others waited meanwhile. It ends with status 1 where one of the others was not answered.
"""

import argparse
import http.client
import json
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.service.processes import Server, eventually, running, spec_of, start_command

HOSTILE, OTHER = "127.0.0.2", "127.0.0.3"
PAUSE_S = 0.2  # of the others, between questions
SETTLE_S = 0.5  # before and after an attack
JOB_S = 20
FUNCTIONS = ("tests.service.factories:greedy", "tests.service.factories:endless")
RUN = "model: {preset: llama-3-8b}\nbatch: {micro_batch: 1, sequence_length: 512}\n"
JSON = {"content-type": "application/json"}
FORM = {"content-type": "application/x-www-form-urlencoded"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """Who asks the server from an address."""

    port: int
    address: str

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=60, source_address=(self.address, 0))

    def ask(self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] = JSON) -> str:
        """The status of the answer and its words."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60, source_address=(self.address, 0))
        try:
            connection.request(method, path, body=body, headers=dict(headers))
            answer = connection.getresponse()
            return f"{answer.status} {_words(answer.read())}"
        except OSError as error:
            return type(error).__name__
        finally:
            connection.close()

    def post(self, path: str, **body: Any) -> str:
        return self.ask("POST", path, json.dumps(body).encode())


def _words(body: bytes) -> str:
    try:
        found = json.loads(body)
    except ValueError:
        return ""
    return str(found.get("detail", "")) or str(found.get("status", ""))


@dataclass(slots=True, kw_only=True)
class Others:
    """What others are answered, and when."""

    client: Client
    job: str
    waits_s: dict[str, list[float]] = field(default_factory=lambda: {"lookup": [], "estimate": []})
    refused: list[str] = field(default_factory=list)

    def ask(self, number: int) -> None:
        for name, path, body in (
            ("lookup", f"/v1/plans/{self.job}", None),
            ("estimate", "/v1/estimate", {"spec": RUN.replace("512", str(512 + number))}),
        ):
            began = time.perf_counter()
            answer = self.client.ask("GET", path) if body is None else self.client.post(path, **body)
            self.waits_s[name].append(time.perf_counter() - began)
            if not answer.startswith("200"):
                self.refused.append(f"{name}: {answer}")


@contextmanager
def asking(others: Others) -> Iterator[None]:
    """Others, meanwhile."""
    stop = threading.Event()

    def ask() -> None:
        number = 0
        while not stop.wait(PAUSE_S):
            number += 1
            others.ask(number)

    thread = threading.Thread(target=ask)
    thread.start()
    time.sleep(SETTLE_S)
    try:
        yield
        time.sleep(SETTLE_S)
    finally:
        stop.set()
        thread.join()


def memory_bytes(server: Server) -> int:
    """What the process that answers holds."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024


# -- the attacks: each returns what it was answered


def _together(count: int, ask: Callable[[int], str]) -> str:
    """The statuses of answers to questions that are asked at once."""
    answers: list[str] = []
    threads = [threading.Thread(target=lambda number=n: answers.append(ask(number)[:3])) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return ", ".join(f"{answers.count(one)} x {one}" for one in sorted(set(answers)))


def _sent(client: Client, content: bytes) -> str:
    """The status lines of what comes back."""
    with client.connect() as connection:
        received = b""
        with suppress(OSError):
            connection.sendall(content)
            while part := connection.recv(65536):
                received += part
    return " and ".join(line[9:12].decode() for line in received.split(b"\r\n") if line.startswith(b"HTTP/1.1 "))


def _dripped(client: Client, begin: bytes) -> str:
    """When a connection is cut off that gets a byte a second."""
    began = time.perf_counter()
    with client.connect() as connection:
        with suppress(OSError):
            connection.sendall(begin)
            while time.perf_counter() - began < 60:
                time.sleep(1)
                connection.sendall(b"1")
        return f"cut off after {time.perf_counter() - began:.0f} s"


def _held(client: Client, count: int, content: bytes, hold_s: float) -> str:
    """Connections that are opened and left so."""
    held = []
    try:
        for _ in range(count):
            with suppress(OSError):
                held.append(client.connect())
                held[-1].sendall(content)
        time.sleep(hold_s)
    finally:
        for connection in held:
            connection.close()
    return f"{len(held)} opened"


def _solved(client: Client, spec: str) -> str:
    """What comes of a plan that is asked for."""
    body = json.dumps({"spec": spec, "budget": "1GB", "name": "hostile"}).encode()
    connection = http.client.HTTPConnection("127.0.0.1", client.port, timeout=60, source_address=(client.address, 0))
    connection.request("POST", "/v1/plans", body=body, headers=JSON)
    job = json.loads(connection.getresponse().read())["id"]

    def ended() -> str:
        connection.request("GET", f"/v1/plans/{job}")
        found = json.loads(connection.getresponse().read())
        time.sleep(PAUSE_S)
        return f"failed: {found['problem']['detail']}" if found["problem"] else ""

    said: str = eventually(ended)
    connection.close()
    return said


def _flooded(client: Client, count: int) -> str:
    """Plans of which each is another one."""
    answers = [client.post("/v1/plans", spec=RUN, budget=f"{number + 1}GB", name="flood") for number in range(count)]
    lists = client.ask("GET", "/v1/plans?limit=200")[:3]
    return f"{sum(one.startswith('202') for one in answers)} x 202, then {answers[-1]}; list {lists}"


def attacks(client: Client, job: str) -> Iterator[tuple[str, Callable[[], str]]]:
    """What is tried, and its name."""
    nested = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n"
        for before, name in zip("abcdefgh", "bcdefghi", strict=True)
    )
    head = b" HTTP/1.1\r\nhost: localhost\r\n"
    slow = "\n".join(f"k{number}: 1" for number in range(90_000))
    specs = {
        "a YAML bomb": nested,
        "10,000 lists in each other": "a: " + "[" * 10_000 + "]" * 10_000,
        "!!python/object": "!!python/object/apply:os.system ['true']",
        "a function": "model: {factory: 'os:system'}\ninputs: {x: {shape: [1], dtype: float32}}",
        "a path": RUN + "device: ../../etc/passwd.yaml",
        "a million signs of YAML": "model: [" + "1," * 490_000 + "]",
    }
    for name, spec in specs.items():
        yield name, lambda spec=spec: client.post("/v1/estimate", spec=spec)
    yield "a path in the address", lambda: client.ask("GET", "/static/..%2f..%2fapp.py")
    yield "a body of 100 MB", lambda: client.ask("POST", "/v1/lint", b" " * 100_000_000)
    yield "a million lists of JSON", lambda: client.ask("POST", "/v1/lint", b'{"content":[' + b"[]," * 10**6 + b"[]]}")
    yield "a form of a million fields", lambda: client.ask("POST", "/submit", b"&" * 4_000_000, FORM)
    yield (
        "20 slow configs at once",
        lambda: _together(20, lambda n: client.post("/v1/lint", content=f"{slow}\nn: {n}", dialect="axolotl")),
    )
    both = b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\nGET /healthz" + head + b"\r\n"
    yield "two lengths, and a hidden request", lambda: _sent(client, b"POST /v1/lint" + head + both)
    yield "headers, a byte a second", lambda: _dripped(client, b"GET /" + head + b"x: ")
    yield "a body, the same", lambda: _dripped(client, b"POST /v1/lint" + head + b"content-length: 999\r\n\r\n")
    yield "a body after its answer", lambda: _dripped(client, b"GET /healthz" + head + b"content-length: 999\r\n\r\n")
    begun = b"POST /v1/lint" + head + b"content-length: 4194304\r\n\r\n" + b" " * 4_000_000
    yield "300 bodies of 4 MB, not finished", lambda: _held(client, 300, begun, 2.0)
    yield "3,000 idle connections", lambda: _held(client, 3000, b"", 5.0)
    watch = b"GET /v1/plans/" + job.encode() + b"/events" + head + b"\r\n"
    yield "400 watchers", lambda: _held(client, 400, watch, 5.0)
    yield "300 plans", lambda: _flooded(elsewhere(client, 5), 300)
    yield "a solve that wants 100 GB", lambda: _solved(elsewhere(client, 4), spec_of("greedy", gigabytes=100))
    yield "a solve that does not end", lambda: _solved(elsewhere(client, 4), spec_of("endless"))


def elsewhere(client: Client, number: int) -> Client:
    """The same from another address, whose share is not used up."""
    return Client(port=client.port, address=f"127.0.0.{number}")


def main() -> int:
    """Runs it; whether anyone was not answered."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="NAME", help="the attacks whose names have this in them")
    only = parser.parse_args().only
    with tempfile.TemporaryDirectory() as folder:
        allowed = [word for name in FUNCTIONS for word in ("--allow", name)]
        options = ("--workers", "1", "--job-time", str(JOB_S), *allowed)
        with running(start_command(f"sqlite:///{folder}/hostile.db", Path(folder) / "log", *options)) as server:
            return _report(server, only)


def _report(server: Server, only: str) -> int:
    client, other = Client(port=server.port, address=HOSTILE), Client(port=server.port, address=OTHER)
    job = server.post("/v1/plans", {"spec": RUN, "budget": "400GB", "name": "innocent"}).data["id"]
    refused: list[str] = []
    print(f"at first the server holds {memory_bytes(server) / 1e6:.0f} MB")
    for name, attack in attacks(client, job):
        if only not in name:
            continue
        others = Others(client=other, job=job)
        with asking(others):
            began = time.perf_counter()
            answer = attack()
            took_s = time.perf_counter() - began
        lookup_ms, estimate_ms = (1e3 * max(waits) for waits in others.waits_s.values())
        print(
            f"{name:34} {took_s:6.2f} s  {memory_bytes(server) / 1e6:4.0f} MB  "
            f"others: {lookup_ms:4.0f} ms, {estimate_ms:4.0f} ms  {answer[:110]}",
            flush=True,
        )
        refused += [f"{name}: {one}" for one in others.refused]
    print("\n".join(refused) or "all others were answered")
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
