"""Runs migrations on the connection that `planner.service.store.database` passes in."""

from alembic import context

connection = context.config.attributes["connection"]
context.configure(connection=connection, render_as_batch=True)
context.run_migrations()
