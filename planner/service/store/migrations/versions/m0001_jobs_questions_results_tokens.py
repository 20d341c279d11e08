"""Jobs, their questions and results, and tokens."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Makes the tables."""
    op.create_table(
        "jobs",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("key", sa.String(64), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("budget", sa.String(64)),
        sa.Column("device", sa.String(50)),
        sa.Column("asker", sa.String(64), nullable=False),
        sa.Column("turn", sa.Integer, nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("started_at", sa.Float),
        sa.Column("finished_at", sa.Float),
        sa.Column("askers", sa.Integer, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("worker", sa.String(200)),
        sa.Column("lease_until", sa.Float),
        sa.Column("progress", sa.Text),
        sa.Column("problem", sa.Text),
    )
    op.create_index("jobs_by_turn", "jobs", ["status", "turn", "created_at"])
    op.create_index("jobs_by_asker", "jobs", ["status", "asker", "turn"])
    op.create_index("jobs_by_age", "jobs", ["created_at", "id"])
    op.create_index("jobs_by_key", "jobs", ["key"])
    in_flight = sa.text("status IN ('queued', 'running')")
    op.create_index(
        "one_job_in_flight_for_a_key",
        "jobs",
        ["key"],
        unique=True,
        sqlite_where=in_flight,
        postgresql_where=in_flight,
    )
    op.create_table(
        "questions",
        sa.Column("job_id", sa.String(32), sa.ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("request", sa.Text, nullable=False),
    )
    op.create_table(
        "results",
        sa.Column("job_id", sa.String(32), sa.ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("summary", sa.Text, nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("plan", sa.Text, nullable=False),
        sa.Column("report", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "tokens",
        sa.Column("id", sa.String(16), primary_key=True),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False, unique=True),
        sa.Column("scopes", sa.String(100), nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("revoked_at", sa.Float),
    )
