"""`planner prune` as a command."""

import json
from pathlib import Path

from click.testing import CliRunner
from sqlalchemy import update

from planner.cli import main
from planner.service.store.database import opened
from planner.service.store.jobs import JobStore
from planner.service.store.tables import jobs

DAY_S = 86_400.0


def test_plans_that_ended_that_many_days_ago_are_deleted(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/p.db"
    with opened(url) as database:
        store = JobStore(database)
        old, recent = (store.cancel(store.submit(key=key, name=key, request={}).id) for key in "ab")
        assert old is not None
        assert recent is not None
        with database.transaction() as connection:
            aged = {"finished_at": jobs.c.finished_at - 2 * DAY_S}
            connection.execute(update(jobs).where(jobs.c.id == old.id).values(**aged))
        command = ["prune", "--db", url, "--older-than", "1.5"]
        assert "deleted 1 plan\n" == CliRunner().invoke(main, command).stdout
        assert [recent.id] == [job.id for job in store.search(limit=10)]
        assert {"deleted": 0} == json.loads(CliRunner().invoke(main, [*command, "--json"]).stdout)


def test_how_old_has_to_be_said(tmp_path: Path) -> None:
    for options in ((), ("--older-than", "-1"), ("--older-than", "nan")):
        result = CliRunner().invoke(main, ["prune", "--db", f"sqlite:///{tmp_path}/p.db", *options])
        assert 2 == result.exit_code
        assert "--older-than" in result.stderr


def test_a_database_that_fails_meanwhile_is_one_line(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/p.db"
    with opened(url) as database, database.transaction() as connection:
        connection.exec_driver_sql("DROP TABLE results")
        connection.exec_driver_sql("ALTER TABLE jobs RENAME TO elsewhere")
    result = CliRunner().invoke(main, ["prune", "--db", url, "--older-than", "1"])
    assert 2 == result.exit_code
    assert "cannot be used: no such table: jobs" in result.stderr
