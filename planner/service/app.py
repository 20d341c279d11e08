"""The application: routes, guards, and errors as problem documents."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import RedirectResponse, Response
from starlette.exceptions import HTTPException

from planner import __version__
from planner.errors import PlannerError
from planner.service.helper_pool import HelperPool
from planner.service.problems import MEDIA_TYPE, PROBLEM_ANSWER, encoded, problem, problem_of
from planner.service.redaction import one_line
from planner.service.security import Guard, Streams
from planner.service.settings import Settings
from planner.service.store.database import AWAY, Database, is_full
from planner.service.store.jobs import JobStore
from planner.service.store.tokens import TokenStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """What routes work with; it is `request.app.state.services`."""

    settings: Settings
    database: Database
    jobs: JobStore
    tokens: TokenStore
    helpers: HelperPool
    streams: Streams


def create_app(settings: Settings, log: Callable[[str], None]) -> FastAPI:
    """The application. The database's tables are made or updated as it starts; `log` takes lines for the operator."""
    database = Database(settings.database)
    helpers = HelperPool(settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        database.migrate()
        yield
        helpers.close()
        database.close()

    app = FastAPI(
        title="planner",
        version=__version__,
        summary="Plans, estimates and lint for the memory of training neural networks.",
        lifespan=lifespan,
        docs_url=None,  # it would load scripts from elsewhere
        redoc_url=None,
        responses={"default": PROBLEM_ANSWER},
        redirect_slashes=False,  # it would lead to whatever the Host header names
    )
    app.state.services = Services(
        settings=settings,
        database=database,
        jobs=JobStore(database),
        tokens=TokenStore(database),
        helpers=helpers,
        streams=Streams(settings.streams_per_client),
    )
    from planner.service.routes import health, pages, plans, quick

    for module in (quick, plans, health, pages):
        app.include_router(module.router)
    app.add_middleware(Guard, settings=settings, log=log)
    _answer_errors(app, log)
    return app


def _answer_errors(app: FastAPI, log: Callable[[str], None]) -> None:
    from planner.service.routes.access import LoginNeededError, login_for

    @app.exception_handler(LoginNeededError)
    async def login_needed(request: Request, error: LoginNeededError) -> Response:
        return RedirectResponse(login_for(request), status_code=303)

    @app.exception_handler(PlannerError)
    async def planner_error(request: Request, error: PlannerError) -> Response:
        return _problem(request, problem_of(error))

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        found = error.errors()
        parts = [f"{'.'.join(str(part) for part in one['loc'])}: {one['msg']}" for one in found[:_MOST_SAID]]
        if len(found) > _MOST_SAID:
            parts.append(f"and {len(found) - _MOST_SAID:,} more")
        if any(one["loc"] == ("body",) for one in found) and not _is_json(request):
            parts = ["body: expected JSON; send content-type: application/json"]  # curl -d alone says it is a form
        return _problem(request, problem(422, "The request cannot be used", "; ".join(parts)))

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        detail = str(error.detail)
        if detail == HTTPStatus.NOT_FOUND.phrase:  # no route, so nobody said what is missing
            detail = f"there is nothing at {request.url.path}; /openapi.json has what there is"
        found = problem(error.status_code, _TITLES.get(error.status_code, "The request failed"), detail)
        return _problem(request, found, dict(error.headers or {}))

    async def database_away(request: Request, error: Exception) -> Response:
        log(f"the database is away: {one_line(str(getattr(error, 'orig', error)))}")
        if is_full(error):
            return _problem(request, problem(507, "No room", "the server's disk is full; nothing was accepted"))
        # What was asked for may have been accepted without a word of it coming back.
        again = "try again: asking for the same plan once more leads to the same job"
        return _problem(request, problem(503, "The database is away", again))

    for kind in AWAY:
        app.add_exception_handler(kind, database_away)


def _is_json(request: Request) -> bool:
    return "json" in request.headers.get("content-type", "")


_MOST_SAID = 10  # of what is wrong with a request
_TITLES = {
    400: "The request cannot be read",
    401: "A token is needed",
    403: "Not allowed",
    404: "Not found",
    405: "Not allowed here",
    409: "Not yet",
    408: "Too slow",
    413: "Too large",
    503: "Busy",
    429: "Too many requests",
}


def _problem(request: Request, found: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> Response:
    """The problem as a document, or as a page for a browser that asked for one."""
    from planner.service.routes.pages import problem_page

    more = dict(headers or {})
    if found["status"] == HTTPStatus.SERVICE_UNAVAILABLE:
        more.setdefault("retry-after", "1")
    if "text/html" in request.headers.get("accept", "") and not request.url.path.startswith("/v1/"):
        page = problem_page(request.app.state.services, found)
        page.headers.update(more)
        return page
    return Response(encoded(found), status_code=found["status"], media_type=MEDIA_TYPE, headers=more)
