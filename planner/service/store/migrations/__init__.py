"""Steps from one form of the tables to the next, run by Alembic; see `planner.service.store.database`."""
