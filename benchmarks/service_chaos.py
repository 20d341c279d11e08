"""Kills servers and workers of a service at random while it is asked for plans, and shows what came of every job.

    ./dev/env python -m benchmarks.service_chaos --jobs 200 --kills 20
    ./dev/env python -m benchmarks.service_chaos --db postgresql://planner@localhost/chaos --solver stub

Two servers and three workers share the database; each kill is SIGKILL, and another process is started in its place.
With --solver stub the solves are pretended, so that the queue is what is tried; otherwise tiny models are traced and
solved for. It ends with status 1 where an accepted job has no result or not its own.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from planner.service.store.jobs import JobStatus
from tests.service.chaos import storm
from tests.service.processes import settings_for


def main() -> int:
    """Runs it; whether anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--db", help="an empty database's URL; a SQLite file in a temporary folder if left out")
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--every", type=float, default=20.0, metavar="SECONDS", help="between kills, on average")
    parser.add_argument("--solver", choices=("real", "stub"), default="real")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        books = storm(
            settings_for(arguments.db or f"sqlite:///{folder}/chaos.db"),
            Path(folder),
            count=arguments.jobs,
            kills=arguments.kills,
            every_s=arguments.every,
            seed=arguments.seed,
            is_stub=arguments.solver == "stub",
        )
    print(f"accepted  {len(set(books.accepted.values()))} jobs, {books.retries} requests sent again")
    print(f"statuses  {dict(books.statuses)}; {books.results[0]} results of {books.results[1]} jobs")
    print(f"killed    {dict(books.kills)}; jobs by how often they were begun: {dict(books.attempts)}")
    print(f"took      {books.took_s:.0f} s")
    is_right = {JobStatus.DONE: arguments.jobs} == books.statuses and not books.wrong
    print("every accepted job ended in its own result, once" if is_right else "WRONG")
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
