"""What is asked in a table of its own, so that lists of jobs do not read it; who asked, and whose turn it is."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Makes the table, and moves what is in work and done there."""
    op.create_table(
        "questions",
        sa.Column("job_id", sa.String(32), sa.ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("request", sa.Text, nullable=False),
    )
    op.execute("INSERT INTO questions (job_id, request) SELECT id, request FROM jobs")
    op.add_column("jobs", sa.Column("budget", sa.String(64)))
    op.add_column("jobs", sa.Column("device", sa.String(50)))
    op.add_column("jobs", sa.Column("asker", sa.String(64), nullable=False, server_default=""))
    op.add_column("jobs", sa.Column("turn", sa.Integer, nullable=False, server_default="0"))
    is_sqlite = op.get_bind().dialect.name == "sqlite"
    member = "json_extract(request, '$.{}')" if is_sqlite else "CAST(request AS json) ->> '{}'"
    op.execute(f"UPDATE jobs SET budget = {member.format('budget')}, device = {member.format('device')}")
    op.drop_column("jobs", "request")
    op.drop_index("jobs_by_status", "jobs")
    op.create_index("jobs_by_turn", "jobs", ["status", "turn", "created_at"])
    op.create_index("jobs_by_asker", "jobs", ["status", "asker", "turn"])
    op.create_index("jobs_by_age", "jobs", ["created_at"])


def downgrade() -> None:
    """Nothing: going back to an older release needs the backup."""
    raise NotImplementedError
