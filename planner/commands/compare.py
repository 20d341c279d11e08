"""`planner compare`: what each technique does for a spec, alone and together."""

from typing import TYPE_CHECKING

import click

from planner.commands.guards import imports, second_interrupt_ends
from planner.commands.options import (
    budget_bytes_of,
    host_budget_bytes_of,
    host_budget_option,
    json_option,
    load_run,
    quiet_option,
    time_limit_option,
    timed_device_of,
    verbose_option,
    warn_of_budget,
)
from planner.commands.output import print_json, progress
from planner.commands.tracing import trace_run

if TYPE_CHECKING:
    from planner.graph import OpGraph
    from planner.spec import RunSpec

_NOTHING_FITS = 1  # as for `planner solve`


@click.command(short_help="Show what each way to save memory does; recommend one.")
@click.argument("spec")
@click.option("--budget", required=True, metavar="SIZE", help="Memory the step may use: 40GB (10^9) or 37.5GiB (2^30).")
@host_budget_option
@click.option("--device", metavar="NAME|FILE", help="A name from `planner devices` or a profile file.")
@time_limit_option(20.0, "Stop solving for a plan then, with the best one found; at most three are solved.")
@json_option
@quiet_option
@verbose_option
@click.pass_context
def compare(
    ctx: click.Context,
    *,
    spec: str,
    budget: str,
    host_budget: str | None,
    device: str | None,
    time_limit: float,
    as_json: bool,
    quiet: bool,
    verbose: bool,
) -> None:
    """Show what each technique does for SPEC, alone and together, and recommend the cheapest that fits.

    One table: the attention kernel, checkpointing by hand, offloading, sequence and context parallelism,
    losses that never hold all logits, 8-bit optimizer state, and the solved plan. Nothing is written. Exit
    status 1 says that nothing fits the budget. When interrupted, it prints the rows that are done.

    \b
    Examples:
      planner compare examples/llama-3-8b.yaml --budget 40GB
      planner compare model.yaml --budget 22GiB --device rtx-4090 --time-limit 5
      planner compare model.yaml --budget 40GB --json --quiet | jq .changes
    """
    report = progress(quiet)
    budget_bytes = budget_bytes_of(budget)
    run = load_run(spec)
    profile = timed_device_of(run, device, report)
    host_budget_bytes = host_budget_bytes_of(profile, host_budget)
    with imports("planner compare"):
        from planner.comparison import growing_comparison
        from planner.reporting.compare import compare_document, compare_text
        from planner.solving.search import Limits
    warn_of_budget(budget, budget_bytes, profile)

    def trace(changed: "RunSpec") -> "OpGraph":
        return trace_run(changed, report=report, verbose=verbose)[1]

    growing = growing_comparison(
        run,
        budget_bytes=budget_bytes,
        host_budget_bytes=host_budget_bytes,
        device=profile,
        trace=trace,
        limits=Limits(time_s=time_limit),
        report=report,
    )
    found = next(growing)
    with second_interrupt_ends():
        try:
            for more in growing:
                found = more
        finally:  # also when interrupted, with what is there so far
            if as_json:
                print_json(compare_document(found))
            else:
                click.echo(compare_text(found))
    if found.recommended is None:
        ctx.exit(_NOTHING_FITS)
