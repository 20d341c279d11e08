"""`planner prune`: what keeps the database of a service from growing for ever."""

import click

from planner.commands.guards import imports
from planner.commands.options import Number, database_option, json_option
from planner.commands.output import print_json

_S_PER_DAY = 24 * 60 * 60


@click.command()
@database_option
@click.option(
    "--older-than",
    "days",
    type=Number(min=0),
    required=True,
    metavar="DAYS",
    help="Delete what ended longer ago than that.",
)
@json_option
def prune(*, database: str, days: float, as_json: bool) -> None:
    """Delete old plans of a service, with their reports. Those that wait or are in work stay.

    It may run while the service does. A question whose plan was deleted is solved anew.

    \b
    Examples:
      planner prune --older-than 90
      planner prune --db postgresql://planner@db/planner --older-than 30
    """
    with imports("planner prune", extra="serve"):
        from planner.service.store.database import opened
        from planner.service.store.jobs import JobStore
    with opened(database) as found:
        deleted = JobStore(found).prune(older_than_s=days * _S_PER_DAY)
    if as_json:
        print_json({"deleted": deleted})
    else:
        click.echo(f"deleted {deleted:,} {'plan' if deleted == 1 else 'plans'}")
