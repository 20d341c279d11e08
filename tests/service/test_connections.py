"""Clients that are slow on purpose."""

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

pytest.importorskip("uvicorn")

import uvicorn

from planner.service import connections
from tests.service.conftest import free_port
from tests.service.processes import environment, eventually

HEAD_S = 0.5
STALL_S = 2.0  # in which a busy machine, too, takes the large answer
LARGE_BYTES = 32 * 2**20  # more than the kernel keeps for a connection


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A server in this process, that says the length of a body, and waits half a second for heads and two for its
    answers to be taken.
    """
    monkeypatch.setattr(connections, "HEAD_S", HEAD_S)
    monkeypatch.setattr(connections, "STALL_S", STALL_S)
    monkeypatch.setattr(connections, "MOST_CONNECTIONS", 4)
    monkeypatch.setattr(connections, "MOST_OF_ONE", 3)

    async def application(scope: dict[str, object], receive: object, send: object) -> None:
        assert scope["type"] == "http"
        length = 0
        if scope["path"] == "/large":
            await send({"type": "http.response.start", "status": 200, "headers": []})  # type: ignore[operator]
            await send({"type": "http.response.body", "body": bytes(LARGE_BYTES)})  # type: ignore[operator]
            return
        while scope["path"] != "/unread" and (message := await receive())["type"] == "http.request":  # type: ignore[operator]
            length += len(message["body"])
            if not message["more_body"]:
                break
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"1")]})  # type: ignore[operator]
        await send({"type": "http.response.body", "body": str(length).encode()})  # type: ignore[operator]

    port = free_port()
    config = uvicorn.Config(
        application, port=port, http=connections.DeadlineProtocol, lifespan="off", log_level="error", ws="none"
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    eventually(lambda: server.started)
    yield port
    server.should_exit = True
    thread.join()


def received(connection: socket.socket, end: bytes) -> bytes:
    """What comes until that."""
    connection.settimeout(60)
    found = b""
    while not found.endswith(end):
        part = connection.recv(4096)
        assert part
        found += part
    return found


def is_closed_within(connection: socket.socket, seconds: float) -> bool:
    connection.settimeout(seconds)
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False


@pytest.mark.parametrize("first", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nhost: localhost\r\nx-a: "])
def test_a_head_that_never_ends_is_cut_off_however_often_a_byte_comes(first: bytes, port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(first)

        def is_cut_off() -> bool:
            time.sleep(HEAD_S / 10)
            try:
                connection.sendall(b"a")
            except (BrokenPipeError, ConnectionResetError):
                return True
            return False

        eventually(is_cut_off)


def test_a_second_request_is_cut_off_likewise(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert received(connection, b"\r\n\r\n0").startswith(b"HTTP/1.1 200")
        time.sleep(2 * HEAD_S)
        connection.sendall(b"GET / ")
        assert is_closed_within(connection, 60 * HEAD_S)


def test_a_body_has_as_long_as_its_own_limit_says(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n1")
        assert not is_closed_within(connection, 3 * HEAD_S)
        connection.sendall(b"2")
        assert received(connection, b"\r\n\r\n2").startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    ("length", "part"), [(b"content-length: 999999", b"1"), (b"transfer-encoding: chunked", b"1\r\n1\r\n")]
)
def test_a_body_that_goes_on_after_its_answer_is_cut_off(length: bytes, part: bytes, port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(b"GET /unread HTTP/1.1\r\nhost: localhost\r\n" + length + b"\r\n\r\n")
        assert received(connection, b"\r\n\r\n0").startswith(b"HTTP/1.1 200")

        def is_cut_off() -> bool:
            time.sleep(HEAD_S / 10)
            try:
                connection.sendall(part)
            except (BrokenPipeError, ConnectionResetError):
                return True
            return False

        eventually(is_cut_off)


def test_an_answer_that_is_not_taken_is_cut_off(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(b"GET /large HTTP/1.1\r\nhost: localhost\r\n\r\n")
        time.sleep(2 * STALL_S)
        taken = 0
        connection.settimeout(60)
        try:
            while part := connection.recv(2**20):
                taken += len(part)
        except ConnectionResetError:
            pass
    assert taken < LARGE_BYTES


def test_an_answer_that_is_taken_is_whole(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(b"GET /large HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        connection.settimeout(60)
        taken = 0
        while part := connection.recv(2**20):
            taken += len(part)
    assert taken > LARGE_BYTES


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have one address of loopback")
def test_one_address_has_so_many_connections_and_all_have_so_many(port: int) -> None:
    def connected(address: str) -> socket.socket:
        return socket.create_connection(("127.0.0.1", port), source_address=(address, 0))

    def is_answered(address: str) -> bool:
        with connected(address) as connection:
            with suppress(OSError):
                connection.sendall(b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            connection.settimeout(60)
            answer = connection.recv(4096)
        assert answer.startswith((b"HTTP/1.1 200", b"HTTP/1.1 503"))
        assert answer.startswith(b"HTTP/1.1 200") or b"too many connections; try again" in answer
        return answer.startswith(b"HTTP/1.1 200")

    with connected("127.0.0.2"), connected("127.0.0.2"), connected("127.0.0.2"):
        assert [False, True] == [is_answered("127.0.0.2"), is_answered("127.0.0.3")]
        with connected("127.0.0.3"):
            assert not is_answered("127.0.0.4")
    eventually(lambda: is_answered("127.0.0.2"))


def test_a_process_may_have_as_many_files_open_as_connections_want() -> None:
    code = (
        "from resource import RLIMIT_NOFILE, getrlimit, setrlimit; setrlimit(RLIMIT_NOFILE, (256, 2048)); "
        "from planner.service.connections import allow_open_files; allow_open_files(); print(getrlimit(RLIMIT_NOFILE))"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, check=True)
    assert b"(2048, 2048)\n" == done.stdout
