"""`planner report`: a plan as one HTML page, or as a picture."""

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from planner.commands.guards import imports
from planner.commands.options import (
    PICTURES,
    device_of,
    format_of,
    host_budget_bytes_of,
    host_budget_option,
    json_option,
    load_run,
    quiet_option,
    time_limit_option,
    verbose_option,
)
from planner.commands.output import STDOUT, Report, print_json, progress
from planner.commands.tracing import trace_run
from planner.errors import PlanFileError, PlanMismatchError

if TYPE_CHECKING:
    from planner.device import DeviceProfile
    from planner.graph import OpGraph
    from planner.plan import Plan
    from planner.spec import RunSpec
    from planner.tradeoff import Frontier

_PAGE = "html"


def _points(ctx: click.Context, param: click.Parameter, value: int) -> int:
    if value == 1:
        raise click.BadParameter("a frontier has at least 2 budgets; 0 for none.")
    return value


@click.command(short_help="Show a plan as one HTML page, or as a picture.")
@click.argument("plan_file", metavar="PLAN")
@click.option("--spec", metavar="SPEC", help="The spec the plan was made for [default: the one that PLAN names].")
@click.option(
    "--output",
    "-o",
    metavar="FILE",
    help="FILE.html, or a picture as FILE.png or FILE.svg [default: <PLAN>.html here]; - for the page on stdout.",
)
@click.option(
    "--frontier",
    "points",
    type=click.IntRange(min=0),
    callback=_points,
    default=4,
    show_default=True,
    metavar="N",
    help="Also solve for N other budgets, and show what they would cost; 0 for none.",
)
@time_limit_option(20.0, "Stop solving for each of these budgets then, with the best plan found.")
@host_budget_option
@click.option(
    "--device",
    metavar="NAME|FILE",
    help="The device the plan was made for, where it is not the spec's [default: PLAN's].",
)
@json_option
@quiet_option
@verbose_option
def report(
    *,
    plan_file: str,
    spec: str | None,
    output: str | None,
    points: int,
    time_limit: float,
    host_budget: str | None,
    device: str | None,
    as_json: bool,
    quiet: bool,
    verbose: bool,
) -> None:
    """Show PLAN as one HTML page that needs no network: memory over the step and what each peak is made of, the
    decisions by module, the timeline of the host link, and what other budgets would cost beside checkpointing by hand.

    The step is traced again, from the spec that the plan names, and the plan simulated on it. --host-budget is for
    the other budgets.

    \b
    Examples:
      planner report llama-3-8b.plan.yaml
      planner report model.plan.yaml --spec model.yaml --frontier 8 -o model.html
      planner report model.plan.yaml --frontier 0 -o model.png
      planner report model.plan.yaml --json --quiet | jq '.memory.peaks[] | {phase, bytes, by_kind}'
    """
    if as_json and output == STDOUT:
        raise click.UsageError("--json and -o - both print to stdout; use one of them")
    target = f"{Path(plan_file).stem}.html" if output is None else output
    file_format = _PAGE if target == STDOUT else format_of(target, (_PAGE, *PICTURES))
    say = progress(quiet)
    from planner.files import check_writable, write_whole
    from planner.plan import load_plan

    plan = load_plan(plan_file)
    spec_file = spec or _spec_of(plan, plan_file)
    run, micro_batch_note = _run_of(plan, spec_file)
    profile = _device_of(plan, run, device)
    host_budget_bytes = host_budget_bytes_of(profile, host_budget)
    with imports("planner report"):
        from planner.answers.plans import report_on
        from planner.reporting.page.page import report_page
        from planner.reporting.report import report_document, report_text
        from planner.reporting.tables import gigabytes
    if file_format != _PAGE:
        with imports("planner report --output", extra="plot"):
            from planner.reporting.report_picture import report_picture
    if target != STDOUT:
        check_writable(Path(target))
    _, graph, trace_s = trace_run(run, report=say, verbose=verbose)
    found = report_on(
        plan, graph, profile, plan_file=plan_file, spec_file=run.path, trace_s=trace_s, notes=micro_batch_note
    )
    if points:
        frontier = _frontier(graph, profile, host_budget_bytes, points=points, time_limit=time_limit, say=say)
        host = (
            f"with up to {gigabytes(host_budget_bytes)} of host memory" if host_budget_bytes else "without offloading"
        )
        found = replace(found, frontier=frontier, notes=(*found.notes, f"the other budgets were solved {host}"))
    content = report_page(found) if file_format == _PAGE else report_picture(found, file_format)
    if target == STDOUT:
        click.echo(content, nl=False)
        return
    write_whole(Path(target), content)
    if as_json:
        print_json(report_document(found, target))
    else:
        click.echo(report_text(found, target))


def _spec_of(plan: "Plan", plan_file: str) -> str:
    """The file of the spec that the plan names."""
    if plan.model.spec is None:
        raise PlanFileError(
            "the plan does not say which spec it was made for",
            path=plan_file,
            key="model.spec",
            hint="give it: --spec SPEC",
        )
    place = Path(os.path.realpath(plan_file)) if os.path.islink(plan_file) else Path(plan_file)
    found = str(place.parent / plan.model.spec)
    if not os.path.isfile(found):
        from planner.reporting.tables import WIDTH, shortened

        raise PlanFileError(
            f"there is no {shortened(plan.model.spec, WIDTH)} where the plan says its spec is",
            path=plan_file,
            key="model.spec",
            hint="say where it is now: --spec SPEC",
        )
    return found


def _run_of(plan: "Plan", spec_file: str) -> "tuple[RunSpec, tuple[str, ...]]":
    """The run, with the plan's micro-batch: `planner solve --objective throughput` chooses one of its own."""
    from planner.spec import with_micro_batch

    run = load_run(spec_file)
    planned, own = plan.model.micro_batch, run.batch.micro_batch
    if planned is None or planned == own:
        return run, ()
    return with_micro_batch(run, planned), (f"the plan is for a micro-batch of {planned}, and {spec_file} has {own}",)


def _device_of(plan: "Plan", run: "RunSpec", chosen: str | None) -> "DeviceProfile":
    """The device of the plan: the one chosen, the spec's, or one that comes with the planner."""
    from planner.device import device_names

    profile = device_of(run, chosen)
    if profile.name == plan.device:
        return profile
    if chosen is None and plan.device in device_names():
        return device_of(run, plan.device)
    whose = run.path if chosen is None else "--device"
    raise PlanMismatchError(
        f"the plan was made for {plan.device}, and {whose} has {profile.name}; give the plan's: --device NAME|FILE"
    )


def _frontier(
    graph: "OpGraph", profile: "DeviceProfile", host_budget_bytes: int, *, points: int, time_limit: float, say: Report
) -> "Frontier":
    with imports("planner report"):
        from planner.solving.search import Limits
        from planner.tradeoff import frontier
    return frontier(
        graph,
        points=points,
        host_budget=host_budget_bytes,
        device=profile,
        limits=Limits(time_s=time_limit),
        report=say,
    )
