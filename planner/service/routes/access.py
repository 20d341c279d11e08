"""Who may do what: tokens in the Authorization header, where the operator asks for them."""

from collections.abc import Callable
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.exceptions import HTTPException

from planner.service.app import Services
from planner.service.store.tokens import Scope

_bearer = HTTPBearer(auto_error=False, description="A token from `planner token create`.")
Credentials = Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]


def services(request: Request) -> Services:
    """What routes work with."""
    found: Services = request.app.state.services
    return found


Service = Annotated[Services, Depends(services)]


def _allowed(scope: Scope) -> Callable[[Services, HTTPAuthorizationCredentials | None], None]:
    def check(service: Service, credentials: Credentials) -> None:
        if not service.settings.needs_tokens:
            return
        token = service.tokens.find(credentials.credentials) if credentials else None
        if token is None:
            raise HTTPException(401, "send Authorization: Bearer TOKEN", headers={"www-authenticate": "Bearer"})
        if scope not in token.scopes:
            raise HTTPException(403, f"the token lacks the scope {scope}")

    return check


may_read = Depends(_allowed(Scope.READ))
may_submit = Depends(_allowed(Scope.SUBMIT))
