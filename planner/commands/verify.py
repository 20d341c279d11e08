"""`planner verify`: real steps without and with a plan."""

import os

import click

from planner.commands.guards import calm, imports, no_exit
from planner.commands.options import json_option, load_run, quiet_option, verbose_option
from planner.commands.output import print_json, progress


@click.command(short_help="Run real steps without and with a plan, and compare.")
@click.argument("spec")
@click.argument("plan_file", metavar="PLAN")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)
@click.option("--layers", type=click.IntRange(min=1), metavar="N", help="Build the model with N layers.")
@click.option("--steps", type=click.IntRange(min=1), default=5, show_default=True, help="Timed steps of each kind.")
@json_option
@quiet_option
@verbose_option
def verify(
    *,
    spec: str,
    plan_file: str,
    device: str,
    layers: int | None,
    steps: int,
    as_json: bool,
    quiet: bool,
    verbose: bool,
) -> None:
    """Run real training steps of SPEC without and with PLAN, and compare bits, bytes and seconds.

    Exit status 1 when a gradient differs, the peak is over the budget, or the prediction is off by more than 2%.
    On a CPU the step is solved again for the CPU's own operators, at the same relative budget. About 30 steps are run,
    of which a CPU takes minutes each for what fills a GPU: give SPEC a small batch there, and --layers and --steps.

    \b
    Examples:
      planner verify model.yaml model.plan.yaml --layers 2 --steps 1
      planner verify model.yaml model.plan.yaml --device cuda --json
    """
    run = load_run(spec)
    from planner.plan import load_plan

    plan = load_plan(plan_file)
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # before torch: its profiler prints a line at each start and stop
    with imports("planner verify"), calm(verbose):
        from planner.reporting.verification import verification_document, verification_text
        from planner.verification import verify as run_verification
    with calm(verbose), no_exit(run):
        found = run_verification(run, plan, device=device, layers=layers, steps=steps, report=progress(quiet))
    if as_json:
        print_json(verification_document(found))
    else:
        click.echo(verification_text(found))
    if found.failures:
        raise SystemExit(1)
