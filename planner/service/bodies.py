"""The bodies of requests, held against limits before they are read: of size, of the time they take to arrive, and of
how many values they have.

The last one is because bodies are read where all requests are answered: a body of 4 MiB may hold a million empty lists,
and reading it keeps everybody else waiting for seconds. Specs and configs are text, one value each, and are read
elsewhere (`planner.service.helper_pool`).
"""

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress

from starlette.exceptions import HTTPException
from starlette.types import Message, Receive, Scope

from planner.service.settings import Settings

MOST_VALUES = 2000  # of JSON; the largest question that is understood has some 400: the rules of a lint
LARGEST_FORM_BYTES = 64 * 2**10  # where each "&" and "%" takes time to read; the pages send specs as multipart
_FORM = b"application/x-www-form-urlencoded"
_MULTIPART = b"multipart/form-data"
# After an answer to what was not read to its end, which is not wanted any more.
CLOSE: Mapping[str, str] = {"connection": "close"}
LINGER_S = 2.0  # between such an answer and the end of the connection


class Body:
    """The body of a request, within limits."""

    def __init__(self, scope: Scope, receive: Receive, settings: Settings) -> None:
        self._receive = receive
        self._media_type = dict(scope["headers"]).get(b"content-type", b"").partition(b";")[0].strip().lower()
        self._largest = LARGEST_FORM_BYTES if self._media_type == _FORM else settings.largest_body_bytes
        self._deadline_s = settings.body_deadline_s
        self._is_whole = False

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
            HTTPException: The body is too large, has too many values, or takes too long to arrive.
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
            content += message.get("body", b"")
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
