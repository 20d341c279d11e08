"""Clients that are slow on purpose."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest

pytest.importorskip("uvicorn")

import uvicorn

from planner.service import connections
from tests.service.conftest import free_port
from tests.service.processes import eventually

HEAD_S = 0.5


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A server in this process, that says the length of a body, and waits half a second for heads."""
    monkeypatch.setattr(connections, "HEAD_S", HEAD_S)

    async def application(scope: dict[str, object], receive: object, send: object) -> None:
        assert scope["type"] == "http"
        length = 0
        while (message := await receive())["type"] == "http.request":  # type: ignore[operator]
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
