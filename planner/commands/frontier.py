"""`planner frontier`: what each budget would cost."""

from pathlib import Path

import click

from planner.commands.guards import imports
from planner.commands.options import (
    format_of,
    gap_option,
    host_budget_bytes_of,
    host_budget_option,
    json_option,
    load_run,
    quiet_option,
    time_limit_option,
    timed_device_of,
    verbose_option,
)
from planner.commands.output import print_json, progress
from planner.commands.tracing import trace_run


@click.command(short_help="Show what every memory budget would cost.")
@click.argument("spec")
@click.option(
    "--points",
    type=click.IntRange(min=2),
    default=8,
    show_default=True,
    help="How many budgets, the smallest reachable peak and that of saving everything included.",
)
@host_budget_option
@click.option("--device", metavar="NAME|FILE", help="A name from `planner devices` or a profile file.")
@click.option("--peers", is_flag=True, help="Also run the rules that other tools decide by.")
@click.option("--output", "-o", metavar="FILE", help="Draw a picture there: FILE.png or FILE.svg.")
@time_limit_option(20.0, "Stop solving for a budget then, with the best plan found.")
@gap_option("Go on to the next budget once what the plan adds is within this fraction of the least possible.")
@json_option
@quiet_option
@verbose_option
def frontier(
    *,
    spec: str,
    points: int,
    host_budget: str | None,
    device: str | None,
    peers: bool,
    output: str | None,
    time_limit: float,
    gap: float,
    as_json: bool,
    quiet: bool,
    verbose: bool,
) -> None:
    """Show what each memory budget would cost SPEC, from the smallest reachable peak to saving everything.

    Prints a table, beside what people do by hand. When interrupted, it prints the budgets that are done,
    and draws no picture.

    \b
    Examples:
      planner frontier examples/llama-3-8b.yaml
      planner frontier model.yaml --points 16 -o frontier.svg
      planner frontier model.yaml --peers --json --quiet | jq '.points[].overhead'
    """
    picture_format = None if output is None else format_of(output)
    report = progress(quiet)
    run = load_run(spec)
    profile = timed_device_of(run, device, report)
    host_budget_bytes = host_budget_bytes_of(profile, host_budget)
    with imports("planner frontier"):
        from planner.files import check_writable, write_whole
        from planner.reporting.frontier import frontier_document, frontier_text
        from planner.solving.search import Limits
        from planner.tradeoff import growing_frontier
    if output is not None:
        with imports("planner frontier --output", extra="plot"):
            from planner.reporting.picture import picture
        check_writable(Path(output))
    _, graph, _ = trace_run(run, report=report, verbose=verbose)
    growing = growing_frontier(
        graph,
        points=points,
        host_budget=host_budget_bytes,
        device=profile,
        limits=Limits(time_s=time_limit, gap=gap),
        with_peers=peers,
        report=report,
    )
    found = next(growing)
    try:
        for more in growing:
            found = more
    finally:  # also when interrupted, with what is there so far
        if as_json:
            print_json(frontier_document(found))
        else:
            click.echo(frontier_text(found))
    if output is not None and picture_format is not None:
        write_whole(Path(output), picture(found, picture_format))
        report(f"wrote {output}")
