"""The queue, on SQLite and on PostgreSQL: who has a job, what is joined, and what a lost worker can do."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import event, select, update

from planner.service.settings import QueueLimits
from planner.service.store.database import Database, opened
from planner.service.store.jobs import (
    LEASE_S,
    MAX_ATTEMPTS,
    Answer,
    Job,
    JobStatus,
    JobStore,
    QueueFullError,
    Result,
    Times,
)
from planner.service.store.tables import jobs, metadata, results
from tests.service.processes import environment

RESULT = Result(summary={"peak_bytes": 1}, text="peak 1 B", plan="plan: 1\n", report="<p>report</p>")


@pytest.fixture
def store(database: Database) -> JobStore:
    return JobStore(database)


def submit(store: JobStore, key: str = "a") -> Job:
    return store.submit(key=key, name=f"job {key}", request={"budget": "1GB"})


def let_the_lease_run_out(database: Database, job: Job, *, by_s: float = 1.0) -> None:
    with database.transaction() as connection:
        connection.execute(update(jobs).where(jobs.c.id == job.id).values(lease_until=database.now() - by_s))


def status(store: JobStore, job: Job) -> JobStatus:
    found = store.get(job.id)
    assert found is not None
    return found.status


def test_the_migrations_make_the_tables_of_the_code(database: Database) -> None:
    with database.reading() as connection:
        assert [] == compare_metadata(MigrationContext.configure(connection), metadata)


@pytest.mark.slow
def test_several_processes_that_start_at_once_make_the_tables_once(database_url: str) -> None:
    code = "import sys\nfrom planner.service.store.database import opened\nwith opened(sys.argv[1]): pass"
    started = [
        subprocess.Popen([sys.executable, "-c", code, database_url], env=environment(), stderr=subprocess.PIPE)
        for _ in range(6)
    ]
    assert [b""] * 6 == [process.communicate()[1] for process in started]
    with opened(database_url) as database:
        submit(JobStore(database))


def test_migrating_again_changes_nothing(database: Database) -> None:
    database.migrate()
    assert JobStore(database).tallies() == {}


def order(store: JobStore) -> list[str]:
    """The names of all jobs that wait, in the order that they are leased in."""
    leases = iter(lambda: store.lease("w"), None)
    return [lease.job.name for lease in leases if lease is not None]


def test_those_who_ask_take_turns(store: JobStore) -> None:
    for asker, count in (("a", 4), ("b", 2), ("c", 1)):
        for number in range(count):
            store.submit(key=f"{asker}{number}", name=f"{asker}{number}", request={}, asker=asker)
    assert ["a0", "b0", "c0", "a1", "b1", "a2", "a3"] == order(store)


def test_who_comes_later_comes_after_what_is_next_and_not_before_it(store: JobStore) -> None:
    for number in range(4):
        store.submit(key=f"a{number}", name=f"a{number}", request={}, asker="a")
    for _ in range(2):
        lease = store.lease("w")
        assert lease is not None
        assert store.finish(lease, RESULT)
    for number in range(2):
        store.submit(key=f"b{number}", name=f"b{number}", request={}, asker="b")
    assert ["a2", "b0", "a3", "b1"] == order(store)


def test_so_many_wait_of_one_and_of_all(store: JobStore) -> None:
    limits = QueueLimits(of_one=2, of_all=3)

    def ask(key: str, asker: str) -> None:
        store.submit(key=key, name=key, request={}, asker=asker, limits=limits)

    ask("1", "a")
    assert store.lease("w") is not None  # which still counts
    ask("2", "a")
    with pytest.raises(QueueFullError, match="2 plans of yours") as mine:
        ask("3", "a")
    ask("2", "a")  # is there already
    ask("3", "b")
    with pytest.raises(QueueFullError, match="3 plans wait") as everyones:
        ask("4", "c")
    assert (True, False) == (mine.value.is_of_one, everyones.value.is_of_one)


def test_lists_do_not_read_what_is_asked(store: JobStore, database: Database) -> None:
    submit(store)
    said: list[str] = []
    event.listen(database.engine, "before_cursor_execute", lambda *asked: said.append(asked[2]))
    store.search(limit=1)
    store.tallies()
    assert said
    assert not [one for one in said if "questions" in one]


def test_a_job_is_leased_once_oldest_first_and_done(store: JobStore) -> None:
    first, second = submit(store, "a"), submit(store, "b")
    one, two = store.lease("w1"), store.lease("w2")
    assert one is not None
    assert two is not None
    assert (one.job.id, two.job.id, store.lease("w3")) == (first.id, second.id, None)
    assert store.finish(one, RESULT)
    assert status(store, first) is JobStatus.DONE
    assert store.answer(first.id) == Answer(summary=RESULT.summary, text=RESULT.text)
    assert (store.plan(first.id), store.report(first.id)) == (RESULT.plan, RESULT.report)
    assert (store.answer(second.id), store.plan(second.id), store.report(second.id)) == (None, None, None)


def test_the_same_question_in_flight_or_done_is_the_same_job(store: JobStore) -> None:
    job = submit(store)
    assert store.submit(key="a", name="again", request={}) == job
    lease = store.lease("w")
    assert lease is not None
    assert submit(store).id == job.id
    store.finish(lease, RESULT)
    assert submit(store).id == job.id


def test_a_question_that_failed_is_asked_anew(store: JobStore) -> None:
    job = submit(store)
    lease = store.lease("w")
    assert lease is not None
    assert store.fail(lease, {"detail": "no"})
    assert submit(store).id != job.id
    failed = store.get(job.id)
    assert failed is not None
    assert (failed.status, failed.problem) == (JobStatus.FAILED, {"detail": "no"})


def test_a_question_whose_cancelling_was_not_carried_out_yet_is_wanted_again(store: JobStore) -> None:
    job = submit(store)
    lease = store.lease("w1")
    assert lease is not None
    store.cancel(job.id)
    store.cancel(job.id)
    assert submit(store).id == job.id
    assert store.renew(lease, {})
    store.cancel(job.id)
    assert not store.renew(lease, {})  # so its worker lets it go
    assert submit(store).id == job.id
    assert JobStatus.QUEUED is store.give_back(lease)
    again = store.lease("w2")
    assert again is not None
    assert store.finish(again, RESULT)
    assert submit(store).id == job.id


def test_a_silent_workers_job_goes_to_another_and_the_first_can_change_nothing_any_more(
    store: JobStore, database: Database
) -> None:
    job = submit(store)
    lost = store.lease("w1")
    assert lost is not None
    let_the_lease_run_out(database, job)
    held = store.lease("w2")
    assert held is not None
    assert (held.job.id, held.attempt) == (job.id, 2)
    assert not store.renew(lost, {})
    assert not store.finish(lost, RESULT)
    assert not store.fail(lost, {})
    assert store.renew(held, {})
    assert store.finish(held, RESULT)
    assert not store.finish(held, RESULT)


def test_a_lease_that_is_renewed_stays(store: JobStore, database: Database) -> None:
    job = submit(store)
    lease = store.lease("w1")
    assert lease is not None
    let_the_lease_run_out(database, job)
    assert store.renew(lease, {"gap": 0.1})
    assert store.lease("w2") is None
    found = store.get(job.id)
    assert found is not None
    assert found.progress == {"gap": 0.1}


def test_a_lease_from_a_clock_that_was_set_back_since_does_not_hold_a_job_for_ever(
    store: JobStore, database: Database
) -> None:
    job = submit(store)
    assert store.lease("w1") is not None
    let_the_lease_run_out(database, job, by_s=-100 * LEASE_S)
    taken = store.lease("w2")
    assert taken is not None
    assert taken.job.id == job.id


def test_a_job_whose_workers_keep_dying_is_given_up(store: JobStore, database: Database) -> None:
    job = submit(store)
    for attempt in range(1, MAX_ATTEMPTS + 1):
        lease = store.lease("w")
        assert lease is not None
        assert lease.attempt == attempt
        let_the_lease_run_out(database, job)
    assert store.lease("w") is None
    found = store.get(job.id)
    assert found is not None
    assert found.status is JobStatus.FAILED
    assert found.problem == {
        "type": "about:blank",
        "title": "Given up",
        "status": 500,
        "detail": "10 workers died while they solved this",
    }


def test_a_worker_that_ends_puts_its_job_back_as_if_not_begun(store: JobStore) -> None:
    job = submit(store)
    lease = store.lease("w1")
    assert lease is not None
    begun = store.get(job.id)
    assert begun is not None
    assert begun.started_at is not None
    assert JobStatus.QUEUED is store.give_back(lease)
    assert job == store.get(job.id)
    again = store.lease("w2")
    assert again is not None
    assert again.attempt == 1


def test_a_job_that_was_put_back_can_be_changed_by_its_next_worker_alone(store: JobStore) -> None:
    submit(store)
    before = store.lease("w1")
    assert before is not None
    store.give_back(before)
    held = store.lease("w2")
    assert held is not None
    assert held.attempt == before.attempt
    assert store.give_back(before) is None  # sent again, since it is not known whether the database got it
    assert not store.finish(before, RESULT)
    assert not store.renew(before, {})
    assert store.finish(held, RESULT)


def test_a_waiting_job_is_cancelled_at_once_and_a_running_one_by_its_worker(store: JobStore) -> None:
    running, waiting = submit(store, "a"), submit(store, "b")
    lease = store.lease("w")
    assert lease is not None
    store.cancel(waiting.id)
    assert status(store, waiting) is JobStatus.CANCELLED
    assert store.renew(lease, {})
    store.cancel(running.id)
    assert status(store, running) is JobStatus.RUNNING
    assert not store.renew(lease, {})
    assert JobStatus.CANCELLED is store.give_back(lease)
    assert status(store, running) is JobStatus.CANCELLED
    assert store.lease("w") is None


def test_a_job_that_two_asked_for_is_cancelled_when_both_take_it_back(store: JobStore) -> None:
    job = submit(store)
    submit(store)
    store.cancel(job.id)
    assert status(store, job) is JobStatus.QUEUED
    store.cancel(job.id)
    assert status(store, job) is JobStatus.CANCELLED
    assert submit(store).id != job.id


def test_a_cancelled_job_whose_worker_died_ends(store: JobStore, database: Database) -> None:
    job = submit(store)
    assert store.lease("w") is not None
    store.cancel(job.id)
    let_the_lease_run_out(database, job)
    assert store.lease("w2") is None
    assert status(store, job) is JobStatus.CANCELLED


def test_cancelling_what_is_done_or_unknown_changes_nothing(store: JobStore) -> None:
    job = submit(store)
    lease = store.lease("w")
    assert lease is not None
    store.finish(lease, RESULT)
    store.cancel(job.id)
    assert status(store, job) is JobStatus.DONE
    assert store.cancel("0" * 32) is None


def test_jobs_are_found_by_name_and_status_newest_first(store: JobStore) -> None:
    first = submit(store, "a_b")
    second = submit(store, "axb")
    assert [second.id, first.id] == [job.id for job in store.search(limit=10)]
    assert [first.id] == [job.id for job in store.search(text="A_B", limit=10)]
    assert [second.id] == [job.id for job in store.search(limit=1)]
    assert [first.id] == [job.id for job in store.search(before=second.id, limit=1)]
    assert [] == store.search(before=first.id, limit=1)
    assert [] == store.search(before="0" * 32, limit=1)
    assert [] == store.search(status=JobStatus.DONE, limit=10)


def test_jobs_of_one_moment_are_each_on_one_page(store: JobStore, database: Database) -> None:
    made = {submit(store, key).id for key in "abc"}
    with database.transaction() as connection:
        connection.execute(update(jobs).values(created_at=1.0))
    seen: list[str] = []
    while page := store.search(before=seen[-1] if seen else None, limit=1):
        seen += [job.id for job in page]
    assert sorted(made) == sorted(seen)


def ago(database: Database, job: Job, **seconds: float) -> None:
    """Moves times of a job to so many seconds before now."""
    with database.transaction() as connection:
        values = {name: database.now() - since for name, since in seconds.items()}
        connection.execute(update(jobs).where(jobs.c.id == job.id).values(**values))


def test_tallies_tell_of_each_status_how_many_how_old_and_how_long(store: JobStore, database: Database) -> None:
    done, other, waiting, never = (submit(store, key) for key in "abcd")
    store.cancel(never.id)
    for _ in (done, other):
        lease = store.lease("w")
        assert lease is not None
        assert store.finish(lease, RESULT)
    ago(database, done, created_at=100, started_at=70, finished_at=20)
    ago(database, other, created_at=50, started_at=48, finished_at=47)
    ago(database, waiting, created_at=40)
    found = store.tallies()
    assert {JobStatus.DONE: 2, JobStatus.QUEUED: 1, JobStatus.CANCELLED: 1} == {
        status: tally.jobs for status, tally in found.items()
    }
    finished = found[JobStatus.DONE]
    assert (2, 2) == (finished.waits.count, finished.solves.count)
    assert pytest.approx((32, 51), abs=0.1) == (finished.waits.sum_s, finished.solves.sum_s)
    assert 40 <= found[JobStatus.QUEUED].oldest_s < 60
    for status in (JobStatus.QUEUED, JobStatus.CANCELLED):
        assert Times(count=0, sum_s=0.0) == found[status].waits == found[status].solves


def test_pruning_deletes_what_ended_long_ago_with_its_result_and_nothing_else(
    store: JobStore, database: Database
) -> None:
    old, recent, running, waiting = (submit(store, key) for key in "abcd")
    for _ in (old, recent):
        lease = store.lease("w")
        assert lease is not None
        assert store.finish(lease, RESULT)
    held = store.lease("w")
    assert held is not None
    for job in (old, recent, running, waiting):
        ago(database, job, created_at=1000)
    ago(database, old, finished_at=101)
    ago(database, recent, finished_at=90)
    assert 1 == store.prune(older_than_s=100)
    assert {recent.id, running.id, waiting.id} == {job.id for job in store.search(limit=10)}
    with database.reading() as connection:
        assert [recent.id] == list(connection.execute(select(results.c.job_id)).scalars())
    assert 0 == store.prune(older_than_s=100)
    assert submit(store, "a").id != old.id


def test_the_queue_works_where_transactions_are_stricter_by_default(database: Database, database_url: str) -> None:
    if database.is_sqlite:
        pytest.skip("SQLite has one kind of transaction")
    stricter = f"ALTER DATABASE {database.engine.url.database} SET default_transaction_isolation TO 'serializable'"
    with database.transaction() as connection:
        connection.exec_driver_sql(stricter)
    with opened(database_url) as new:  # connections that have it so
        test_many_at_once_have_each_job_once(JobStore(new))


def test_many_at_once_have_each_job_once(store: JobStore) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda number: submit(store, str(number % 20)).id, range(60)))
        assert len(set(made)) == 20
        leases = list(pool.map(lambda _: store.lease("w"), range(40)))
    leased = [lease.job.id for lease in leases if lease is not None]
    assert sorted(leased) == sorted(set(made))
