"""`planner serve` and `planner worker`: the service on one machine, and more workers for it on others."""

import ipaddress
import os

import click

from planner.commands.guards import imports
from planner.commands.options import Number, database_option
from planner.commands.output import say
from planner.errors import PlannerError, UnitError
from planner.service.settings import MIB, Settings, SolveLimits, as_text
from planner.units import parse_bytes

_LIMITS = SolveLimits()


class ServeError(PlannerError):
    """A service that cannot be started as asked."""


_allow_option = click.option(
    "--allow",
    "allowed",
    multiple=True,
    metavar="NAME",
    help="A function (package.module:function) or file that specs may name. Its code runs on this machine.",
)
_memory_option = click.option(
    "--job-memory",
    metavar="SIZE",
    default=f"{_LIMITS.memory_bytes // (1024 * MIB)}GiB",
    show_default=True,
    help="What one solve may take of address space.",
)
_time_option = click.option(
    "--job-time",
    type=Number(min=1),
    default=_LIMITS.wall_s,
    show_default=True,
    metavar="SECONDS",
    help="What one solve may take in all; the search itself a third of it.",
)


@click.command(short_help="Serve plans, estimates and lint over HTTP.")
@database_option
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to bind.")
@click.option("--port", type=click.IntRange(1, 65535), default=8080, show_default=True)
@click.option("--workers", type=click.IntRange(0, 64), default=1, show_default=True, help="Processes that solve.")
@click.option("--processes", type=click.IntRange(1, 64), default=1, show_default=True, help="Processes that answer.")
@click.option("--tokens/--no-tokens", "needs_tokens", default=None, help="Ask for tokens [default: beyond loopback].")
@_allow_option
@_memory_option
@_time_option
def serve(
    *,
    database: str,
    host: str,
    port: int,
    workers: int,
    processes: int,
    needs_tokens: bool | None,
    allowed: tuple[str, ...],
    job_memory: str,
    job_time: float,
) -> None:
    """Serve plans, estimates and lint over HTTP, as an API and as pages.

    Binds to this machine alone unless --host says otherwise, and then asks for a token of `planner token create`.
    Ctrl-C ends it; jobs that are in work are put back, and go on with the next start.

    \b
    Examples:
      planner serve
      planner serve --db postgresql://planner@db/planner --host 0.0.0.0 --workers 4
    """
    with imports("planner serve", extra="serve"):
        from planner.service.processes import SETTINGS, LocalWorkers, check_address, listen
        from planner.service.store.database import opened
        from planner.service.store.tokens import TokenStore
    is_open = not _is_loopback(host)
    settings = _settings(
        database, allowed, job_memory, job_time, needs_tokens=is_open if needs_tokens is None else needs_tokens
    )
    if is_open and not settings.needs_tokens:
        raise ServeError(f"others can reach {host}, and would need no token; leave --no-tokens out, or bind 127.0.0.1")
    with opened(database) as found:
        has_token = any(token.revoked_at is None for token in TokenStore(found).all())
    if settings.needs_tokens and not has_token:
        raise ServeError("there is no token yet that could be sent; make one: planner token create NAME --db ...")
    check_address(host, port)
    os.environ[SETTINGS] = as_text(settings)
    with LocalWorkers(workers, settings, say):
        listen(host, port, processes)


@click.command(short_help="Solve jobs of a service, here or elsewhere.")
@database_option
@_allow_option
@_memory_option
@_time_option
def worker(*, database: str, allowed: tuple[str, ...], job_memory: str, job_time: float) -> None:
    """Solve jobs of a service, on this machine or another: they share nothing but the database.

    Ctrl-C and SIGTERM put the job in work back. Killed, it loses nothing but time: another worker begins again.

    \b
    Examples:
      planner worker --db postgresql://planner@db/planner
    """
    with imports("planner worker", extra="serve"):
        from planner.service.processes import work
        from planner.service.store.database import opened
    settings = _settings(database, allowed, job_memory, job_time, needs_tokens=False)
    with opened(database):
        pass  # its tables are there now
    say("waiting for jobs; Ctrl-C ends it")
    work(settings, say)


def _settings(
    database: str, allowed: tuple[str, ...], job_memory: str, job_time: float, *, needs_tokens: bool
) -> Settings:
    try:
        memory_bytes = parse_bytes(job_memory)
    except UnitError as error:
        raise click.BadParameter(str(error), param_hint="--job-memory") from None
    limits = SolveLimits(wall_s=job_time, memory_bytes=memory_bytes)
    return Settings(database=database, allowed=frozenset(allowed), needs_tokens=needs_tokens, limits=limits)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False  # a name, which may mean any address
