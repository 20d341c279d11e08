"""Who may do what: tokens in the Authorization header or, for browsers, in a cookie, where the operator asks for them.

A browser sends cookies, and reaches a service on its own machine, for any site that tells it to. So what changes
something is refused when another site asked for it.
"""

import re
from collections.abc import Callable
from typing import Annotated
from urllib.parse import urlencode

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.exceptions import HTTPException

from planner.service.app import Services
from planner.service.security import client_of
from planner.service.store.tokens import Scope

COOKIE = "planner_token"
_bearer = HTTPBearer(auto_error=False, description="A token from `planner token create`.")
Credentials = Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]


class LoginNeededError(Exception):
    """A page that needs a token, which the browser does not have."""


def login_for(request: Request) -> str:
    """Where a browser signs in that wanted a page, to which it then returns; what it sends is not sent again."""
    if request.method != "GET":
        return "/login"
    wanted = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    return f"/login?{urlencode({'next': wanted})}"


def local(address: str) -> str:
    r"""The address of a page, where it is surely one of this server, and else that of the first page.

    Browsers take "//host", "/\host" and either with a tab or line end inside for another server's.
    """
    return address if _LOCAL.fullmatch(address) else "/"


_LOCAL = re.compile(r"/(?!/)[!-\[\]-~]*")  # what prints in ASCII, but a backslash


def services(request: Request) -> Services:
    """What routes work with."""
    found: Services = request.app.state.services
    return found


Service = Annotated[Services, Depends(services)]


def is_same_site(request: Request) -> bool:
    """Whether a browser says that no other site asked for this. Programs that are no browsers say nothing."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site in ("same-origin", "none")
    origin = request.headers.get("origin")  # from browsers before 2023
    return origin is None or origin.partition("://")[2] == request.headers.get("host")


def _check(scope: Scope, service: Services, request: Request, credentials: HTTPAuthorizationCredentials | None) -> bool:
    """Whether the request may pass; False when it has no token that is known.

    Raises:
        HTTPException: Its token does not have the scope, or another site asks for a change.
    """
    if scope is Scope.SUBMIT and not is_same_site(request):
        raise HTTPException(403, "another site asked for this")
    if not service.settings.needs_tokens:
        return True
    secret = credentials.credentials if credentials else request.cookies.get(COOKIE)
    token = service.tokens.find(secret) if secret else None
    if token is not None and scope not in token.scopes:
        raise HTTPException(403, f"the token lacks the scope {scope}")
    if token is not None:
        request.state.token = token.id
    return token is not None


def asker(request: Request) -> str:
    """Who asks, for limits that are shared out: a token that was checked, or else an address."""
    found: str = getattr(request.state, "token", None) or client_of(request.scope)
    return found


Asker = Annotated[str, Depends(asker)]


_Check = Callable[[Services, Request, HTTPAuthorizationCredentials | None], None]


def _allowed(scope: Scope) -> _Check:
    def check(service: Service, request: Request, credentials: Credentials) -> None:
        if not _check(scope, service, request, credentials):
            raise HTTPException(401, "send Authorization: Bearer TOKEN", headers={"www-authenticate": "Bearer"})

    return check


def _page_allowed(scope: Scope) -> _Check:
    def check(service: Service, request: Request, credentials: Credentials) -> None:
        if not _check(scope, service, request, credentials):
            raise LoginNeededError

    return check


may_read = Depends(_allowed(Scope.READ))
may_submit = Depends(_allowed(Scope.SUBMIT))
page_may_read = Depends(_page_allowed(Scope.READ))
page_may_submit = Depends(_page_allowed(Scope.SUBMIT))
