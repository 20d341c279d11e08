"""Connections: what uvicorn leaves open of clients that are slow on purpose."""

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_S = 10.0  # for a request's line and headers to arrive; a body has a limit of its own
MOST_CONNECTIONS = 900  # of each server process, which may by default have 1,024 files open
SHUTDOWN_S = 5  # for answers that are under way; those who watch plans would otherwise hold the server for minutes


class DeadlineProtocol(H11Protocol):
    """HTTP that ends connections whose next request does not arrive, byte after byte though it may come (slowloris)."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as H11Protocol's is
        super().connection_made(transport)
        self._start()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._stop()
        elif self._deadline is None:  # the first bytes of a further request
            self._start()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        super().connection_lost(exc)

    def _start(self) -> None:
        self._deadline = self.loop.call_later(HEAD_S, self.transport.close)

    def _stop(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
