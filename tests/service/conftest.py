"""Databases for the tests of the service: a SQLite file each, and one PostgreSQL that the tests start."""

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("sqlalchemy")
pytest.importorskip("alembic")

from planner.service.store.database import Database, opened

DEBIAN_BINARIES = Path("/usr/lib/postgresql")


def postgres_binary(name: str) -> str | None:
    versions = sorted(DEBIAN_BINARIES.glob(f"*/bin/{name}"))
    return str(versions[-1]) if versions else shutil.which(name)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Postgres:
    """A cluster of the tests' own, on loopback."""

    directory: Path
    port: int
    as_user: tuple[str, ...]

    def url(self, name: str = "postgres") -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{name}"

    def run(self, binary: str, *arguments: str) -> None:
        command = [*self.as_user, str(postgres_binary(binary)), *arguments]
        subprocess.run(command, check=True, capture_output=True, cwd=self.directory)

    def start(self) -> None:
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={self.directory}"
        self.run("pg_ctl", "-D", f"{self.directory}/data", "-w", "-l", f"{self.directory}/log", "-o", options, "start")

    def stop(self, mode: str) -> None:
        self.run("pg_ctl", "-D", f"{self.directory}/data", "-m", mode, "-w", "stop")


@contextmanager
def a_cluster(directory: Path) -> Iterator[Postgres]:
    """A cluster of its own in an empty directory that every user can reach."""
    if postgres_binary("initdb") is None or postgres_binary("pg_ctl") is None:
        pytest.skip("PostgreSQL is not installed")
    pytest.importorskip("psycopg")
    as_user: tuple[str, ...] = ()
    if os.geteuid() == 0:  # PostgreSQL refuses to run as root
        as_user = ("runuser", "-u", "postgres", "--")
        shutil.chown(directory, "postgres")
    cluster = Postgres(directory=directory, port=free_port(), as_user=as_user)
    data = f"{directory}/data"
    try:
        cluster.run("initdb", "-D", data, "-U", "postgres", "-A", "trust", "--no-sync", "--wal-segsize=1")
        cluster.start()
        yield cluster
    finally:
        with suppress(subprocess.CalledProcessError):  # where it has ended by itself
            cluster.stop("immediate")


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """One cluster for all tests that leave it running."""
    folder = tempfile.TemporaryDirectory(prefix="planner-postgres-", ignore_cleanup_errors=True)
    with folder as name, a_cluster(Path(name)) as cluster:
        yield cluster


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database, of each kind in turn."""
    return database_of(request, tmp_path)


def database_of(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database, of the kind that is the fixture's parameter."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/planner.db"
    cluster: Postgres = request.getfixturevalue("postgres")
    name = f"test_{os.urandom(6).hex()}"
    cluster.run("createdb", "-h", "127.0.0.1", "-p", str(cluster.port), "-U", "postgres", name)
    return cluster.url(name)


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    with opened(database_url) as found:
        yield found
