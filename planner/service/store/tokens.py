"""Tokens: made once and shown once; what is kept is a hash, so that a copy of the database opens nothing."""

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import ColumnElement, Row, insert, select, update

from planner.service.store.database import Database
from planner.service.store.tables import tokens

_PREFIX = "planner_"  # so that scanners for leaked secrets can know one
_TOKEN_BYTES = 32  # of randomness: beyond any guessing, so that a plain hash of it is enough
_ID_BYTES = 4


class Scope(StrEnum):
    """What a token is good for."""

    READ = "read"  # looking at plans
    SUBMIT = "submit"  # asking for plans, estimates and lint, and cancelling


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """What is known of a token."""

    id: str
    name: str
    scopes: frozenset[Scope]
    created_at: float
    revoked_at: float | None


class TokenStore:
    """The operations on tokens."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def create(self, name: str, scopes: frozenset[Scope]) -> tuple[Token, str]:
        """A new token, and its secret, which cannot be had again."""
        secret = _PREFIX + secrets.token_urlsafe(_TOKEN_BYTES)
        token_id = secrets.token_hex(_ID_BYTES)
        with self._database.transaction() as connection:
            connection.execute(
                insert(tokens).values(
                    id=token_id,
                    name=name,
                    digest=_digest(secret),
                    scopes=" ".join(sorted(scopes)),
                    created_at=select(self._database.now()).scalar_subquery(),
                )
            )
        return self._by(tokens.c.id == token_id), secret

    def find(self, secret: str) -> Token | None:
        """The token of a secret, unless it was revoked."""
        with self._database.reading() as connection:
            row = connection.execute(
                select(tokens).where(tokens.c.digest == _digest(secret), tokens.c.revoked_at.is_(None))
            ).one_or_none()
        return None if row is None else _token(row)

    def all(self) -> Sequence[Token]:
        """Every token, the oldest first."""
        with self._database.reading() as connection:
            return [_token(row) for row in connection.execute(select(tokens).order_by(tokens.c.created_at))]

    def revoke(self, token_id: str) -> bool:
        """Whether there was such a token, not revoked before."""
        with self._database.transaction() as connection:
            changed = connection.execute(
                update(tokens)
                .where(tokens.c.id == token_id, tokens.c.revoked_at.is_(None))
                .values(revoked_at=self._database.now())
            )
        return changed.rowcount == 1

    def _by(self, condition: ColumnElement[bool]) -> Token:
        with self._database.reading() as connection:
            return _token(connection.execute(select(tokens).where(condition)).one())


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _token(row: Row[Any]) -> Token:
    return Token(
        id=row.id,
        name=row.name,
        scopes=frozenset(Scope(scope) for scope in row.scopes.split()),
        created_at=row.created_at,
        revoked_at=row.revoked_at,
    )
