"""What the base installation leaves out, and the error that says how to get it."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec

from planner.errors import MissingExtraError

# Package -> the extra that brings it.
EXTRA_BY_PACKAGE: Mapping[str, str] = {
    "torch": "solve",
    "networkx": "solve",
    "numpy": "solve",
    "ortools": "solve",
    "transformers": "hf",
    "matplotlib": "plot",
    "alembic": "serve",
    "fastapi": "serve",
    "jinja2": "serve",
    "prometheus_client": "serve",
    "sqlalchemy": "serve",
    "uvicorn": "serve",
    "psycopg": "postgres",
}


@contextmanager
def needs(feature: str, extra: str = "solve") -> Iterator[None]:
    """Around imports: a package of an extra that is absent becomes an error that names the extra.

    Args:
        feature: what the user asked for, such as "planner solve".
        extra: the extra to name when the failed import does not say which package it missed.

    Raises:
        MissingExtraError: a package of an extra cannot be imported.
    """
    try:
        yield
    except ImportError as error:
        package = (error.name or "").partition(".")[0]
        if package == "planner":
            raise  # our own mistake
        if package not in EXTRA_BY_PACKAGE:
            # Pictures are drawn by themselves: what is missing elsewhere is not what draws them.
            likely = [name for name in EXTRA_BY_PACKAGE if (EXTRA_BY_PACKAGE[name] == "plot") == (extra == "plot")]
            package = next((name for name in likely if find_spec(name) is None), "")
        raise MissingExtraError(feature, EXTRA_BY_PACKAGE.get(package, extra), package=package or None) from error
