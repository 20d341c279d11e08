"""What stands before every request: the size of its body, how many come from one client, tokens, and headers."""

import threading
import time
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from planner.service.problems import MEDIA_TYPE, encoded, problem
from planner.service.settings import Settings

# A report carries its own style and script with a policy of its own in the page; the service's pages load theirs from
# the service. Both hold at once, so what this one forbids no page can allow: inline parts are therefore left to pages.
_HEADERS: Mapping[str, str] = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
PAGE_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; frame-src 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_MOST_CLIENTS = 10_000  # that are remembered; beyond it the longest silent are forgotten
_MINUTE_S = 60.0


class TooLargeError(Exception):
    """A body beyond the limit, found out while it is read."""


class RateLimiter:
    """Counts requests of each client over the last minute, as a bucket that refills evenly."""

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_minute = per_minute
        self._clock = clock
        self._lock = threading.Lock()
        self._buckets: dict[str, tuple[float, float]] = {}  # tokens left, and when that was

    def wait_s(self, client: str) -> float:
        """0 when the request may pass, and else how long the client should wait."""
        rate = self._per_minute / _MINUTE_S
        with self._lock:
            now = self._clock()
            left, then = self._buckets.pop(client, (float(self._per_minute), now))
            left = min(float(self._per_minute), left + (now - then) * rate)
            wait = 0.0 if left >= 1 else (1 - left) / rate
            self._buckets[client] = (left - 1 if left >= 1 else left, now)
            if len(self._buckets) > _MOST_CLIENTS:
                self._buckets.pop(next(iter(self._buckets)))
        return wait


class Guard:
    """Refuses what is too large or too much, and puts security headers on every answer."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._largest = settings.largest_body_bytes
        self._limiter = RateLimiter(settings.requests_per_minute)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        has_begun = False

        async def send_guarded(message: Message) -> None:
            nonlocal has_begun
            if message["type"] == "http.response.start":
                has_begun = True
                names = {name.lower() for name, _ in message["headers"]}
                extra = {name: value for name, value in _HEADERS.items() if name.encode() not in names}
                message["headers"] = [*message["headers"], *((k.encode(), v.encode()) for k, v in extra.items())]
            await send(message)

        wait_s = 0.0 if scope["path"] in _UNCOUNTED else self._limiter.wait_s(_client(scope))
        if wait_s:
            found = problem(429, "Too many requests", f"wait {wait_s:.1f} s")
            await _refuse(send_guarded, found, {"retry-after": str(int(wait_s) + 1)})
            return
        declared = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        too_large = problem(413, "Too large", f"a request may have at most {self._largest:,} bytes")
        if not declared.isdigit() or int(declared) > self._largest:
            await _refuse(send_guarded, too_large, {})
            return
        received = 0

        async def receive_guarded() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._largest:
                raise TooLargeError
            return message

        try:
            await self._app(scope, receive_guarded, send_guarded)
        except TooLargeError:
            if not has_begun:
                await _refuse(send_guarded, too_large, {"connection": "close"})


_UNCOUNTED = frozenset(("/healthz", "/readyz"))


def _client(scope: Scope) -> str:
    client = scope.get("client")
    return client[0] if client else ""


async def _refuse(send: Send, found: Mapping[str, Any], headers: MutableMapping[str, str]) -> None:
    body = encoded(found)
    every = {"content-type": MEDIA_TYPE, "content-length": str(len(body)), **headers}
    await send(
        {
            "type": "http.response.start",
            "status": found["status"],
            "headers": [(name.encode(), value.encode()) for name, value in every.items()],
        }
    )
    await send({"type": "http.response.body", "body": body})
