"""`planner token`: who may use a service that asks for tokens."""

from dataclasses import asdict
from datetime import UTC, datetime

import click

from planner.commands.guards import imports
from planner.commands.options import database_option, json_option
from planner.commands.output import print_json
from planner.commands.serve import ServeError

_LONGEST_NAME = 200  # as the database has room for


@click.group()
def token() -> None:
    """Make, list and revoke the tokens of a service.

    \b
    Examples:
      planner token create ci --scope read --scope submit
      planner token list
      planner token revoke 1f2e3d4c
    """


@token.command()
@click.argument("name")
@database_option
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    type=click.Choice(["read", "submit"]),
    default=("read", "submit"),
    show_default=True,
    help="What it is good for: looking at plans, asking for them.",
)
def create(*, name: str, database: str, scopes: tuple[str, ...]) -> None:
    """Make a token for NAME, and print it: it cannot be shown again."""
    if not name.isprintable() or not 0 < len(name) <= _LONGEST_NAME:
        raise ServeError(f"expected a name of one line and 1 to {_LONGEST_NAME} characters, found {name[:50]!r}")
    with imports("planner token", extra="serve"):
        from planner.service.store.database import opened
        from planner.service.store.tokens import Scope, TokenStore
    with opened(database) as found:
        _, secret = TokenStore(found).create(name, frozenset(Scope(scope) for scope in scopes))
    click.echo(secret)


@token.command("list")
@database_option
@json_option
def list_tokens(*, database: str, as_json: bool) -> None:
    """List tokens, without their secrets, which are not kept."""
    with imports("planner token", extra="serve"):
        from planner.reporting.tables import table
        from planner.service.store.database import opened
        from planner.service.store.tokens import TokenStore
    with opened(database) as found:
        tokens = TokenStore(found).all()
    if as_json:
        print_json({"tokens": [{**asdict(one), "scopes": sorted(one.scopes)} for one in tokens]})
        return
    rows = [
        (one.id, one.name, " ".join(sorted(one.scopes)), _day(one.created_at), _day(one.revoked_at)) for one in tokens
    ]
    click.echo("\n".join(table(("Token", "name", "scopes", "created", "revoked"), rows, left=5)))


@token.command()
@click.argument("token_id", metavar="TOKEN")
@database_option
def revoke(*, token_id: str, database: str) -> None:
    """End the token with that id, which `planner token list` shows."""
    with imports("planner token", extra="serve"):
        from planner.service.store.database import opened
        from planner.service.store.tokens import TokenStore
    with opened(database) as found:
        done = TokenStore(found).revoke(token_id)
    if not done:
        raise ServeError(f"there is no token {token_id!r} that could be revoked; planner token list shows them")


def _day(seconds: float | None) -> str:
    return "" if seconds is None else datetime.fromtimestamp(seconds, UTC).date().isoformat()
