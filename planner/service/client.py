"""A client of the service, with nothing but the standard library: it works on a base installation.

It knows the service's API and no more; what is printed, and what Ctrl-C does, is decided by the command.
"""

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from http.client import HTTPException, HTTPResponse
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from planner.errors import PlannerError

ANSWER_S = 60.0  # for one answer; what the server answers at once takes it ten seconds at most
NEWS_S = 30.0  # for the next line of a stream, which brings one every half second
PATIENCE_S = 60.0  # with a server that is away while a plan is solved for: its jobs outlive it
RETRY_S = 1.0
_MOST_BYTES = 64 * 2**20  # of one answer: the plans of large models have some hundred KB
_IN_FLIGHT = ("queued", "running")
_PASSING = (429, 502, 503, 504)  # statuses that say "later"
_CONTROLS = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")  # all that a terminal obeys, but the end of a line


class ServerError(PlannerError):
    """A service that cannot be reached, or does not give what it is asked for.

    Args:
        message: The whole sentence for a person.
        problem: The problem document that the service gave (RFC 9457), or nothing.
    """

    def __init__(self, message: str, *, problem: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.problem = problem or {}


class Client:
    """The service at an address, for one who has a token or needs none."""

    def __init__(self, url: str, token: str | None = None) -> None:
        """Connects to nothing yet.

        Args:
            url: Such as "https://planner.example.org".
            token: As `planner token create` printed it.

        Raises:
            ServerError: The URL or the token cannot be one.
        """
        try:
            parts = urlsplit(url)
            is_usable = (
                parts.scheme in ("http", "https") and bool(parts.hostname) and not (parts.query + parts.fragment)
            )
        except ValueError:
            is_usable = False
        if not is_usable:
            raise ServerError(f"expected the address of a service such as http://localhost:8080, found {url!r}")
        if token is not None and not re.fullmatch(r"[\x21-\x7e]+", token):
            raise ServerError("the token has characters that none has; use what `planner token create` printed")
        self.url = url.rstrip("/")
        self._headers = {"accept": "application/json"} | ({"authorization": f"Bearer {token}"} if token else {})
        self._opener = build_opener(_NoRedirect)

    def ask(self, body: Mapping[str, Any]) -> str:
        """The id of the job that solves for a plan; see `POST /v1/plans`.

        Raises:
            ServerError: It was not accepted.
        """
        job = self._parsed(self._content("POST", "/v1/plans", body))
        if "id" not in job:
            raise self._stranger()
        return str(job["id"])

    def watch(self, job_id: str) -> Iterator[Mapping[str, Any]]:
        """The job, whenever there is news of it, and last as it ended. A server that is away for a while is waited for.

        Raises:
            ServerError: The server is away for too long, or does not know the job.
        """
        until = time.monotonic() + PATIENCE_S
        while True:
            why = "it ended the stream"
            try:
                with self._open("GET", f"/v1/plans/{job_id}/events", timeout_s=NEWS_S) as stream:
                    for line in stream:
                        until = time.monotonic() + PATIENCE_S
                        if line.startswith(b"data: "):
                            job = self._parsed(line.removeprefix(b"data: "))
                            yield job
                            if job.get("status") not in _IN_FLIGHT:
                                return
            except (OSError, HTTPException) as error:
                why = _reason(error)
            except ServerError as error:
                if error.problem.get("status") not in _PASSING:
                    raise
                why = str(error)
            if time.monotonic() > until:
                raise ServerError(f"lost {self.url}: {why}; the job goes on: {self.url}/plans/{job_id}")
            time.sleep(RETRY_S)

    def result(self, job_id: str) -> tuple[Mapping[str, Any], str]:
        """What `planner solve` prints of a job that is done, but where the plan is: as JSON data, and as text."""
        job = self._parsed(self._content("GET", f"/v1/plans/{job_id}"))
        if not isinstance(job.get("summary"), dict) or not isinstance(job.get("text"), str):
            raise ServerError(f"{self.url} is of another version: it gives no summary as this one knows it")
        return job["summary"], job["text"]

    def plan(self, job_id: str) -> str:
        """The plan file's text."""
        return self._content("GET", f"/v1/plans/{job_id}/plan.yaml").decode(errors="replace")

    def cancel(self, job_id: str) -> None:
        """Takes the job back, which goes on if others want it too."""
        self._content("DELETE", f"/v1/plans/{job_id}")

    def _content(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> bytes:
        try:
            with self._open(method, path, body, timeout_s=ANSWER_S) as response:
                content = response.read(_MOST_BYTES + 1)
        except (OSError, HTTPException) as error:
            raise ServerError(
                f"{self.url} cannot be reached: {_reason(error)}; is planner serve running there?"
            ) from error
        if len(content) > _MOST_BYTES:
            raise ServerError(f"{self.url} answered with more than {_MOST_BYTES:,} bytes")
        return content

    def _open(self, method: str, path: str, body: Mapping[str, Any] | None = None, *, timeout_s: float) -> HTTPResponse:
        data = None if body is None else json.dumps(body).encode()
        headers = self._headers | ({} if data is None else {"content-type": "application/json"})
        request = Request(self.url + path, data=data, headers=headers, method=method)
        try:
            response: HTTPResponse = self._opener.open(request, timeout=timeout_s)
        except HTTPError as error:
            with error:
                raise self._refusal(error) from None
        return response

    def _refusal(self, error: HTTPError) -> ServerError:
        """What an answer that is none says."""
        if "location" in error.headers:
            return ServerError(f"{self.url} has moved to {plain(error.headers['location'])}; use that address")
        try:
            found = json.loads(error.read(_MOST_BYTES))
        except ValueError:
            found = None
        if not isinstance(found, dict) or "detail" not in found:
            reason = plain(str(error.reason))
            return ServerError(f"{self.url} answered {error.code} {reason}", problem={"status": error.code})
        detail = plain(str(found["detail"]))
        if error.code == 401:
            detail = "a token is needed, and this is none that it knows; set PLANNER_TOKEN, or --token-file FILE"
        located = found.get("line") is not None or found.get("key") is not None
        return ServerError(detail if located else f"{self.url}: {detail}", problem={**found, "status": error.code})

    def _parsed(self, content: bytes) -> Mapping[str, Any]:
        try:
            found = json.loads(content)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise self._stranger()
        return found

    def _stranger(self) -> ServerError:
        return ServerError(f"what answers at {self.url} is no planner service")


class _NoRedirect(HTTPRedirectHandler):
    """Follows no redirect: the token is for one server alone."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def news(before: Sequence[str], after: Sequence[str]) -> Sequence[str]:
    """The lines of progress that are new: both are the end of the same growing list, or of an earlier attempt's."""
    old, new = list(before), list(after)
    same = next(size for size in range(min(len(old), len(new)), -1, -1) if old[len(old) - size :] == new[:size])
    return new[same:]


def plain(text: str) -> str:
    """The text without what a terminal would obey."""
    return _CONTROLS.sub(" ", text)


def _reason(error: Exception) -> str:
    cause = getattr(error, "reason", error)  # of a URLError, what it was raised from
    return plain(str(getattr(cause, "strerror", None) or cause or type(cause).__name__))
