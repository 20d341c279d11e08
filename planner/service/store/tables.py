"""The tables. `planner.service.store.migrations` makes them; a test holds the two against each other.

Times are seconds since 1970 by the database's clock, so that servers and workers need not agree on theirs.
"""

from sqlalchemy import (
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    text,
)

metadata = MetaData()

jobs = Table(
    "jobs",
    metadata,
    Column("id", String(32), primary_key=True),
    # What is asked, hashed: two submissions with the same key are the same question.
    Column("key", String(64), nullable=False),
    Column("name", String(200), nullable=False),  # for people, and for search
    Column("budget", String(64)),  # of the question, for lists
    Column("device", String(50)),
    # Who asked first: a token's id, or an address. Each has their turns, and so many jobs in flight.
    Column("asker", String(64), nullable=False),
    Column("turn", Integer, nullable=False),
    Column("status", String(16), nullable=False),
    Column("created_at", Float, nullable=False),
    Column("started_at", Float),  # the latest attempt
    Column("finished_at", Float),
    # How many asked for it and did not take it back. When none is left it is cancelled: by its worker, if it has one.
    Column("askers", Integer, nullable=False),
    # The lease. `attempt` is also its fence: what comes with an older number is refused.
    Column("attempt", Integer, nullable=False),
    Column("worker", String(200)),
    Column("lease_until", Float),
    Column("progress", Text),  # JSON
    Column("problem", Text),  # JSON: why there is no plan
    Index("jobs_by_turn", "status", "turn", "created_at"),
    Index("jobs_by_asker", "status", "asker", "turn"),
    Index("jobs_by_age", "created_at", "id"),
    Index("jobs_by_key", "key"),
    # Identical questions in flight are one job.
    Index(
        "one_job_in_flight_for_a_key",
        "key",
        unique=True,
        sqlite_where=text("status IN ('queued', 'running')"),
        postgresql_where=text("status IN ('queued', 'running')"),
    ),
)

questions = Table(
    "questions",
    metadata,
    Column("job_id", String(32), ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    Column("request", Text, nullable=False),  # JSON; of a megabyte at most
)

results = Table(
    "results",
    metadata,
    Column("job_id", String(32), ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    Column("summary", Text, nullable=False),  # JSON, as `planner solve --json` prints it
    Column("text", Text, nullable=False),  # as `planner solve` prints it, without the last line
    Column("plan", Text, nullable=False),  # YAML, as planner.apply takes it
    Column("report", LargeBinary, nullable=False),  # HTML, compressed with zlib
)

tokens = Table(
    "tokens",
    metadata,
    Column("id", String(16), primary_key=True),
    Column("name", String(200), nullable=False),
    Column("digest", String(64), nullable=False, unique=True),  # SHA-256 of the token: the token itself is not kept
    Column("scopes", String(100), nullable=False),
    Column("created_at", Float, nullable=False),
    Column("revoked_at", Float),
)
