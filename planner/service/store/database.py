"""Connections: SQLite in one file by default, PostgreSQL by URL, and what differs between the two."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    Float,
    cast,
    create_engine,
    event,
    func,
    literal_column,
    select,
)
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from planner.errors import PlannerError
from planner.extras import needs

BUSY_MS = 10_000  # that a writer waits for another; a transaction here takes milliseconds
CONNECT_S = 5  # that a database may take to answer a new connection
SILENCE_MS = 30_000  # after which a connection whose other end acknowledges nothing is given up: the network is gone
POOL_SIZE = 5
_MIGRATIONS = Path(__file__).parent / "migrations"


class DatabaseError(PlannerError):
    """A database that cannot be used, or a URL of none."""


class Database:
    """An engine, and transactions on it."""

    def __init__(self, url: str) -> None:
        """Connects to nothing yet.

        Args:
            url: Such as "sqlite:////var/lib/planner/planner.db" or "postgresql://user@host/planner".

        Raises:
            DatabaseError: The URL is not of one of these two.
            MissingExtraError: PostgreSQL's driver is not installed.
        """
        parsed = _parsed(url)
        self.is_sqlite = parsed.drivername == _SQLITE
        # For messages: without its password, and without parameters, which may have another one.
        self._shown = parsed.set(query={}).render_as_string(hide_password=True)
        if self.is_sqlite:
            # Parameters may be secret, or what others sent, and would be part of error messages.
            self.engine: Engine = create_engine(parsed, hide_parameters=True, connect_args={"timeout": BUSY_MS / 1000})
            event.listen(self.engine, "connect", _prepare_sqlite)
            event.listen(self.engine, "begin", _begin_sqlite)
        else:
            with needs("a database on PostgreSQL", "postgres"):
                self.engine = create_engine(
                    parsed.set(drivername="postgresql+psycopg"),
                    hide_parameters=True,
                    isolation_level="READ COMMITTED",  # what the queue counts on, whatever the database's default is
                    pool_pre_ping=True,  # a connection that died with the database is found out before it is used
                    pool_size=POOL_SIZE,
                    connect_args={"connect_timeout": CONNECT_S, "tcp_user_timeout": SILENCE_MS},
                )

    def migrate(self) -> None:
        """Makes or updates the tables, to those of this release; safe when several processes start at once.

        Raises:
            DatabaseError: The database cannot be reached, opened or written, or a newer release has made its tables.
        """
        from alembic import command
        from alembic.config import Config
        from alembic.util import CommandError

        config = Config()
        config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
        with self.in_words(), self.engine.begin() as connection:
            if not self.is_sqlite:
                connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_MIGRATION_LOCK})")
            config.attributes["connection"] = connection
            try:
                command.upgrade(config, "head")
            except CommandError as error:
                way = "a newer release has made its tables: install that one, or restore a backup from before"
                raise DatabaseError(f"the database {self._shown} cannot be used: {way}") from error
            # Where nothing was to be updated, nothing was written: whether it can be is found out now.
            connection.exec_driver_sql("UPDATE alembic_version SET version_num = version_num")

    @contextmanager
    def in_words(self) -> Iterator[None]:
        """Around what an operator asks for: an error of the database is a line that names it, without its password.

        Raises:
            DatabaseError: Instead of a DBAPIError.
        """
        try:
            yield
        except DBAPIError as error:
            raise DatabaseError(f"the database {self._shown} cannot be used: {_why(error)}") from error

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """A transaction that commits at its end, and is undone by an error."""
        with self.engine.begin() as connection:
            yield connection

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A transaction that only reads: on SQLite it waits for no writer."""
        with self.engine.connect().execution_options(**{_READS: True}) as connection, connection.begin():
            yield connection

    def check(self) -> None:
        """Returns when the database answers.

        Raises:
            DBAPIError: It does not.
        """
        with self.reading() as connection:
            connection.execute(select(1))

    def now(self) -> ColumnElement[float]:
        """The database's clock, in seconds since 1970: on PostgreSQL, not that of the transaction's begin."""
        if self.is_sqlite:
            return literal_column("((julianday('now') - 2440587.5) * 86400.0)")
        return cast(func.extract("epoch", func.clock_timestamp()), Float)

    def close(self) -> None:
        """Ends all connections."""
        self.engine.dispose()


@contextmanager
def opened(url: str) -> Iterator[Database]:
    """The database at a URL, with its tables made or updated, while it is used.

    Raises:
        DatabaseError: The URL cannot be one, or the database does not do what it is asked for meanwhile.
    """
    database = Database(url)
    try:
        database.migrate()
        with database.in_words():
            yield database
    finally:
        database.close()


def _parsed(url: str) -> URL:
    """The parts of a database's URL.

    Raises:
        DatabaseError: It is none of a database that can be used.
    """
    expected = "expected a database URL such as sqlite:///planner.db or postgresql://host/planner"
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):  # the latter of a port that is no number
        raise DatabaseError(expected) from None
    if parsed.drivername not in (_SQLITE, *_POSTGRESQL):
        raise DatabaseError(f"{expected}, found {parsed.drivername}://")
    if parsed.drivername == _SQLITE and parsed.database in (None, "", ":memory:"):
        raise DatabaseError(f"{expected}, found one without a file: jobs are to outlive the process")
    return parsed


_SQLITE = "sqlite"
_POSTGRESQL = ("postgresql", "postgresql+psycopg")


def _why(error: DBAPIError) -> str:
    """What a database says, and what to do about it where that is known."""
    said = " ".join(str(error.orig).split())
    way = next((way for sign, way in _WAYS.items() if sign in said), None)
    return said if way is None else f"{said}; {way}"


# What SQLite and PostgreSQL say, and the way out.
_WAYS = {
    "unable to open database file": "its folder has to exist and be writable, and the name be no folder's",
    "file is not a database": "name another file",
    "already exists": "it has tables that are not the planner's: name an empty one",
    "database is locked": "another program has it open for itself; end that, or wait",
    "readonly database": "let this user write the file and its folder",
    "read-only transaction": "name the server that takes writes",
    "authentication failed": "set PLANNER_DB to a URL with the right user and password",
    "no password supplied": "set PLANNER_DB to a URL with the password",
}


AWAY = (DBAPIError, PoolTimeoutError)  # what is raised while the database is away, or has no connection free


def is_full(error: Exception) -> bool:
    """Whether an error means that the database has no room left."""
    cause = getattr(error, "orig", None)
    return getattr(cause, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL or (
        getattr(cause, "sqlstate", None) == _PG_DISK_FULL
    )


_PG_DISK_FULL = "53100"  # Source: PostgreSQL, Appendix A, "disk_full"
_READS = "reads"
_MIGRATION_LOCK = 0x706C616E  # "plan"


def _prepare_sqlite(connection: Any, _: object) -> None:
    connection.isolation_level = None  # transactions are begun by `_begin_sqlite`, not by the driver
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", f"busy_timeout={BUSY_MS}"):
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: Connection) -> None:
    # A transaction that reads before it writes would otherwise fail where another one wrote in between.
    connection.exec_driver_sql("BEGIN" if connection.get_execution_options().get(_READS) else "BEGIN IMMEDIATE")
