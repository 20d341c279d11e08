"""Connections: what uvicorn leaves open of clients that are slow, or many, on purpose."""

import asyncio
import resource
import socket
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from planner.service.problems import MEDIA_TYPE, encoded, problem
from planner.service.security import network_of

HEAD_S = 10.0  # for a request's line and headers to arrive; a body has a limit of its own
STALL_S = 60.0  # for an answer to be taken: a report of 2 MB then needs 0.3 Mbit/s
MOST_CONNECTIONS = 900  # of each server process
MOST_OF_ONE = MOST_CONNECTIONS // 2  # from one address: a proxy has as many, and one client cannot have all
# For as many connections as may wait to be taken besides: closing them needs files, too.
OPEN_FILES = 4096
SHUTDOWN_S = 5  # for answers that are under way; those who watch plans would otherwise hold the server for minutes


def allow_open_files() -> None:
    """Lets this process have as many files open as connections may want, as far as the system lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < OPEN_FILES:
        wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class DeadlineProtocol(H11Protocol):
    """HTTP that ends connections on which nothing is answered and no request arrives, byte after byte though it may
    come (slowloris), or whose answer is not taken; and that has only so many.
    """

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._deadline: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None
        self.network = ""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as H11Protocol's is
        super().connection_made(transport)
        _give_up_silent(transport)
        self.network = network_of(self.client)
        if len(self.connections) > MOST_CONNECTIONS or self._of_one() > MOST_OF_ONE:
            self.connections.discard(self)  # at once, or those that come next are too many, too
            transport.write(_TOO_MANY)
            transport.close()
        else:
            self._watch()

    def _of_one(self) -> int:
        return sum(getattr(one, "network", None) == self.network for one in self.connections)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        # A body that goes on after its answer is nobody's. Between requests, uvicorn's own limit holds.
        if self.conn.their_state is h11.SEND_BODY:
            self._watch()

    def _watch(self) -> None:
        """Lets the time run whenever no request is being answered, from the first byte of what is to be one."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._deadline = _stop(self._deadline)
        elif self._deadline is None and not self.transport.is_closing():
            self._deadline = self.loop.call_later(HEAD_S, self.transport.close)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stall = self._stall or self.loop.call_later(STALL_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stall = _stop(self._stall)

    def connection_lost(self, exc: Exception | None) -> None:
        self._deadline, self._stall = _stop(self._deadline), _stop(self._stall)
        super().connection_lost(exc)


def _stop(timer: asyncio.TimerHandle | None) -> asyncio.TimerHandle | None:
    """No timer, once the one that there was is cancelled."""
    if timer is not None:
        timer.cancel()
    return None


def _give_up_silent(transport: asyncio.Transport) -> None:
    """Asks the kernel to end a connection whose other end takes nothing more, which closing it would wait for."""
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
        found = transport.get_extra_info("socket")
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(STALL_S * 1000))


def _answer_too_many() -> bytes:
    body = encoded(problem(503, "Busy", "too many connections; try again"))
    head = (
        f"HTTP/1.1 503 Service Unavailable\r\ncontent-type: {MEDIA_TYPE}\r\ncontent-length: {len(body)}\r\n"
        "retry-after: 1\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body


_TOO_MANY = _answer_too_many()
