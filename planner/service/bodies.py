"""The bodies of requests, held against limits before they are read: of size, of the time they take to arrive, and of
how many values they have.

The last one is because bodies are read where all requests are answered: a body of 4 MiB may hold a million empty lists,
and reading it keeps everybody else waiting for seconds. Specs and configs are text, one value each, and are read
elsewhere (`planner.service.helper_pool`).
"""

import asyncio
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress

from starlette.exceptions import HTTPException
from starlette.types import Message, Receive, Scope

from planner.service.settings import MIB, Settings

MOST_VALUES = 2000  # of JSON; the largest question that is understood has some 400: the rules of a lint
LARGEST_FORM_BYTES = 64 * 2**10  # where each "&" and "%" takes time to read; the pages send specs as multipart
MOST_BUFFERED = 256 * MIB
MOST_BUFFERED_OF_ONE = 64 * MIB  # sixteen of the largest
_FORM = b"application/x-www-form-urlencoded"
_MULTIPART = b"multipart/form-data"
# After an answer to what was not read to its end, which is not wanted any more.
CLOSE: Mapping[str, str] = {"connection": "close"}
LINGER_S = 2.0  # between such an answer and the end of the connection


class Buffers:
    """What bodies take of memory while their requests are answered, in all and of each client."""

    def __init__(self, *, of_one: int = MOST_BUFFERED_OF_ONE, of_all: int = MOST_BUFFERED) -> None:
        self._of_one, self._of_all = of_one, of_all
        self._bytes: Counter[str] = Counter()

    def take(self, client: str, count: int) -> None:
        """Counts more bytes.

        Raises:
            HTTPException: There is no room for them.
        """
        if self._bytes[client] + count > self._of_one or self._bytes.total() + count > self._of_all:
            raise HTTPException(503, "too much is being sent at once; try again", dict(CLOSE))
        self._bytes[client] += count

    def give_back(self, client: str, count: int) -> None:
        """Counts bytes that are no longer there."""
        self._bytes[client] -= count
        self._bytes += Counter()  # forgets those that have none


class Body:
    """The body of a request, within limits; `close` has to be called at its end."""

    def __init__(self, scope: Scope, receive: Receive, settings: Settings, buffers: Buffers, client: str) -> None:
        self._receive = receive
        self._buffers = buffers
        self._client = client
        self._taken = 0
        self._media_type = dict(scope["headers"]).get(b"content-type", b"").partition(b";")[0].strip().lower()
        self._largest = LARGEST_FORM_BYTES if self._media_type == _FORM else settings.largest_body_bytes
        self._deadline_s = settings.body_deadline_s
        self._is_whole = False

    def close(self) -> None:
        """Gives its room back."""
        self._buffers.give_back(self._client, self._taken)
        self._taken = 0

    async def drain(self) -> None:
        """Takes what still comes, for a moment: a client that is cut off while it sends does not see its answer."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER_S):
                while not self._is_whole:
                    message = await self._receive()
                    self._is_whole = not message.get("more_body", False)

    async def receive(self) -> Message:
        """The whole body as one message, and after it what comes then: that the client has gone.

        Raises:
            HTTPException: The body is too large, has too many values, takes too long to arrive, or comes with too many.
        """
        if self._is_whole:
            return await self._receive()
        content = bytearray()
        until = time.monotonic() + self._deadline_s
        while not self._is_whole:
            try:
                async with asyncio.timeout(max(0.0, until - time.monotonic())):
                    message = await self._receive()
            except TimeoutError:
                raise HTTPException(408, "the request took too long to arrive", dict(CLOSE)) from None
            if message["type"] != "http.request":
                return message
            part = message.get("body", b"")
            self._buffers.take(self._client, len(part))
            self._taken += len(part)
            content += part
            self._is_whole = not message.get("more_body", False)
            if len(content) > self._largest:
                raise HTTPException(413, self._too_large(), dict(CLOSE))
        if self._media_type not in (_FORM, _MULTIPART):
            _check_json(bytes(content))
        return {"type": "http.request", "body": bytes(content), "more_body": False}

    def _too_large(self) -> str:
        if self._media_type == _FORM:
            return f"a form may have at most {self._largest:,} bytes; send a larger one as multipart/form-data"
        return too_large(self._largest)


def too_large(largest_bytes: int) -> str:
    """What is said of a request that is."""
    return f"a request may have at most {largest_bytes:,} bytes"


def _check_json(content: bytes) -> None:
    """Nothing, where JSON has no more values than are read; whether it is JSON at all is not looked at.

    Raises:
        HTTPException: It has more, or is not UTF-8, in which they can be counted.
    """
    if b"\0" in content:
        raise HTTPException(400, "the request has a NUL byte; send JSON in UTF-8")
    # Pairs of backslashes go first, so that what escapes a quotation mark can be told from what is escaped itself.
    strings = content.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"', 2 * MOST_VALUES)
    outside = b"".join(strings[::2])
    if len(strings) > 2 * MOST_VALUES or sum(outside.count(sign) for sign in (b",", b"[", b"{")) > MOST_VALUES:
        raise HTTPException(413, f"a request may have at most {MOST_VALUES:,} values")
