"""What stands before every request: whom it takes the server for, how many come from one client, what can be told of
its body beforehand, and headers; and behind every request, what is said of a fault of ours.
"""

import ipaddress
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from planner.service.bodies import CLOSE, Body, Buffers, too_large
from planner.service.problems import MEDIA_TYPE, encoded, problem
from planner.service.redaction import fault, one_line
from planner.service.settings import Settings

_HEADERS: Mapping[str, str] = {
    "content-security-policy": "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "cache-control": "no-store",
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
# A report has a policy of its own in the page, for its own style and script. Both hold at once. This one makes it a
# page of no site, so that its script, whatever it is, can ask the service for nothing.
REPORT_POLICY = "sandbox allow-scripts; frame-ancestors 'self'"
EVENT_S = 0.5  # between looks for news of a plan
LOOKS_PER_S = 100.0  # of all who watch; each takes about a millisecond
_MOST_CLIENTS = 10_000  # that are remembered; beyond it the longest silent are forgotten
_MINUTE_S = 60.0


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


class Streams:
    """Counts the answers to each client that do not end by themselves, and says how often they may look for news."""

    def __init__(self, per_client: int) -> None:
        self._per_client = per_client
        self._open: Counter[str] = Counter()

    @property
    def pause_s(self) -> float:
        """Between two looks of one: longer the more there are, since each look is a question to the database."""
        return max(EVENT_S, self._open.total() / LOOKS_PER_S)

    @contextmanager
    def one(self, client: str) -> Iterator[None]:
        """While one is open.

        Raises:
            HTTPException: The client has too many.
        """
        if self._open[client] >= self._per_client:
            raise HTTPException(429, f"at most {self._per_client} at once", {"retry-after": "10"})
        self._open[client] += 1
        try:
            yield
        finally:
            self._open[client] -= 1
            self._open += Counter()  # forgets those that have none


class Guard:
    """Refuses what is too large or too much, and puts security headers on every answer."""

    def __init__(self, app: ASGIApp, settings: Settings, log: Callable[[str], None]) -> None:
        self._app = app
        self._settings = settings
        self._log = log
        self._limiter = RateLimiter(settings.requests_per_minute)
        self._buffers = Buffers()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = Body(scope, receive, self._settings, self._buffers, client_of(scope))
        has_begun = is_last = False

        async def send_guarded(message: Message) -> None:
            nonlocal has_begun, is_last
            if message["type"] == "http.response.start":
                has_begun = True
                is_last = (b"connection", b"close") in message["headers"]
                names = {name.lower() for name, _ in message["headers"]}
                extra = {name: value for name, value in _HEADERS.items() if name.encode() not in names}
                message["headers"] = [*message["headers"], *((k.encode(), v.encode()) for k, v in extra.items())]
            elif is_last and not message.get("more_body", False):
                await send({**message, "more_body": True})
                await body.drain()
                message = {"type": "http.response.body", "body": b""}
            await send(message)

        refused = self._refused(scope)
        if refused is not None:
            await _refuse(send_guarded, *refused)
            return
        try:
            await self._app(scope, body.receive, send_guarded)
        except Exception as error:
            self._log(f"{scope['method']} {one_line(scope['path'])}: {fault(error)}")
            if not has_begun:  # else the connection's end says that something is missing
                await _refuse(send_guarded, problem(500, "A fault of the server", "what went wrong is in its log"))
        finally:
            body.close()

    def _refused(self, scope: Scope) -> tuple[Mapping[str, Any], Mapping[str, str]] | None:
        """The problem with a request that can be told before it is read, and headers for it."""
        headers = dict(scope["headers"])
        # A site whose name leads here (DNS rebinding) is, for a browser, the same site as this one. Where tokens are
        # needed, the browser has none for that name.
        if not self._settings.needs_tokens and not _is_loopback(headers.get(b"host", b"").decode("latin-1")):
            name = "a service without tokens answers to localhost alone; to serve another name, start it with --tokens"
            return problem(421, "Not the name of this server", name), {}
        wait_s = 0.0 if scope["path"] in _UNCOUNTED else self._limiter.wait_s(client_of(scope))
        if wait_s:
            return problem(429, "Too many requests", f"wait {wait_s:.1f} s"), {"retry-after": str(int(wait_s) + 1)}
        if b"content-length" in headers and b"transfer-encoding" in headers:
            # A proxy before this may have believed the other one, and take the rest of the body for a request.
            # Source: RFC 9112, section 6.1.
            return problem(400, "Two lengths", "a request has a content-length or a transfer-encoding, not both"), CLOSE
        if int(headers.get(b"content-length", b"0")) > self._settings.largest_body_bytes:
            return problem(413, "Too large", too_large(self._settings.largest_body_bytes)), CLOSE
        return None


def _is_loopback(host: str) -> bool:
    """Whether a Host header names this machine as itself: "localhost:8080"."""
    name, colon, port = host.rpartition(":")
    name = name if colon and port.isdigit() else host
    if name.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:  # a name, which may lead anywhere
        return False


_UNCOUNTED = frozenset(("/healthz", "/readyz"))


def client_of(scope: Scope) -> str:
    """Who asks, for limits: an address, or what one household or office has of IPv6."""
    return network_of(scope.get("client"))


def network_of(client: tuple[str, int] | None) -> str:
    """The address of a connection's other end, or what one household or office has of IPv6."""
    if not client:
        return ""
    try:
        address = ipaddress.ip_address(client[0])
    except ValueError:  # what a proxy has said
        return client[0][:_LONGEST_NAME]
    if isinstance(address, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((address, _IPV6_PREFIX_BITS), strict=False))
    return str(address)


_LONGEST_NAME = 64  # of a client that is no address; all are remembered
_IPV6_PREFIX_BITS = 64  # Source: RFC 6177, of what a single network is given at least


async def _refuse(send: Send, found: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> None:
    body = encoded(found)
    every = {"content-type": MEDIA_TYPE, "content-length": str(len(body)), **(headers or {})}
    await send(
        {
            "type": "http.response.start",
            "status": found["status"],
            "headers": [(name.encode(), value.encode()) for name, value in every.items()],
        }
    )
    await send({"type": "http.response.body", "body": body})
