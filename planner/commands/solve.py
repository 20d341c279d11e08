"""`planner solve`: the cheapest plan that fits a budget."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from planner.commands.guards import calm, imports, no_exit, second_interrupt_ends
from planner.commands.interrupts import is_interrupt
from planner.commands.options import (
    budget_bytes_of,
    gap_option,
    host_budget_bytes_of,
    host_budget_option,
    json_option,
    load_run,
    quiet_option,
    sizes,
    time_limit_option,
    timed_device_of,
    verbose_option,
    warn_of_budget,
)
from planner.commands.output import STDOUT, Report, print_json, progress
from planner.commands.tracing import trace_run
from planner.errors import InfeasibleError, SolveInterrupted
from planner.files import check_apart, check_writable

if TYPE_CHECKING:
    from planner.device import DeviceProfile
    from planner.errors import WayOut
    from planner.graph import OpGraph
    from planner.plan import Plan
    from planner.planning import Outcome
    from planner.simulation.rehearsal import Rehearsal
    from planner.solving.search import Limits
    from planner.spec import RunSpec
    from planner.throughput import Throughput
    from planner.tracing import Step


@click.command(short_help="Find the cheapest plan that fits a memory budget.")
@click.argument("spec")
@click.option("--budget", required=True, metavar="SIZE", help="Memory the step may use: 40GB (10^9) or 37.5GiB (2^30).")
@host_budget_option
@click.option("--device", metavar="NAME|FILE", help="A name from `planner devices` or a profile file.")
@click.option(
    "--objective",
    type=click.Choice(["time", "throughput"]),
    default="time",
    show_default=True,
    help="throughput also chooses the micro-batch, for the most tokens per second.",
)
@click.option(
    "--micro-batches",
    callback=sizes,
    metavar="1,2,4",
    help="With --objective throughput, try these [default: search from the spec's].",
)
@click.option("--output", "-o", metavar="PLAN", help="Plan file [default: <SPEC>.plan.yaml here]; - for stdout.")
@time_limit_option(60.0, "Stop solving then, with the best plan found.")
@gap_option("Stop once what the plan adds to the step is within this fraction of the least possible.")
@click.option("--no-advice", is_flag=True, help="When no plan fits, do not look for changes that would.")
@click.option(
    "--server",
    metavar="URL",
    help="Have it solved by a `planner serve` there, which needs neither torch nor a solver here.",
)
@click.option(
    "--token-file", metavar="FILE", help="With --server, the file that has the token [default: PLANNER_TOKEN]."
)
@json_option
@quiet_option
@verbose_option
def solve(
    *,
    spec: str,
    budget: str,
    host_budget: str | None,
    device: str | None,
    objective: str,
    micro_batches: tuple[int, ...] | None,
    output: str | None,
    time_limit: float,
    gap: float,
    no_advice: bool,
    server: str | None,
    token_file: str | None,
    as_json: bool,
    quiet: bool,
    verbose: bool,
) -> None:
    """Find the cheapest plan for SPEC that fits the budget, and write it to a file.

    Prints the predicted memory and time beside what people do today. When no plan fits, nothing is
    written, the exit status is 1, and changes of the spec that would fit are looked for. Ctrl-C prints
    the best plan so far and writes nothing; a second one ends at once.

    With --objective throughput, the micro-batch is chosen as well: several are solved for the budget, and
    the plan is for the one with the most tokens per predicted second. Limits are for each of them. When
    interrupted, it prints those that are done, and writes no plan.

    With --server, a service solves, and the answer is the same; Ctrl-C takes the question back.

    \b
    Examples:
      planner solve examples/llama-3-8b.yaml --budget 40GB
      planner solve model.yaml --budget 22GiB --device rtx-4090 -o 4090.plan.yaml
      planner solve model.yaml --budget 80GB --objective throughput --micro-batches 8,16,24,32
      planner solve model.yaml --budget 40GB --json --quiet | jq .predicted_peak_bytes
      planner solve model.yaml --budget 40GB --server https://planner.example.org
    """
    if as_json and output == STDOUT:
        raise click.UsageError("--json and -o - both print to stdout; use one of them")
    if micro_batches is not None and objective == "time":
        raise click.UsageError("--micro-batches needs --objective throughput")
    if server is not None and (objective == "throughput" or no_advice):
        raise click.UsageError("--server goes with neither --objective throughput nor --no-advice")
    if server is None and token_file is not None:
        raise click.UsageError("--token-file needs --server")
    report = progress(quiet)
    budget_bytes = budget_bytes_of(budget)
    run = load_run(spec)
    profile = timed_device_of(run, device, report)
    host_budget_bytes = host_budget_bytes_of(profile, host_budget)
    path = Path(f"{Path(spec).stem}.plan.yaml" if output is None else output)
    if output != STDOUT:
        check_writable(path)
        check_apart(path, [spec])
    warn_of_budget(budget, budget_bytes, profile)
    if server is not None:
        from planner.commands.remote import RemoteSolve, client_of, solve_remotely

        options = {
            "budget": budget,
            "host_budget": host_budget,
            "device": device,
            "gap": gap,
            "time_limit": time_limit,
        }
        asked = RemoteSolve(spec=spec, path=path, is_plan_printed=output == STDOUT, as_json=as_json, options=options)
        solve_remotely(client_of(server, token_file), asked, report)
        return
    with imports("planner solve"):
        from planner.planning import solve_graph
        from planner.solving.search import Limits
        from planner.spec import with_micro_batch
    answers = _Answers(
        spec=spec,
        path=path,
        memory_bytes=profile.memory_bytes,
        is_plan_printed=output == STDOUT,
        as_json=as_json,
    )
    limits = Limits(time_s=time_limit, gap=gap)
    if objective == "throughput":
        found = _throughput(
            run, budget_bytes, host_budget_bytes, profile, micro_batches or (), limits, answers, report, verbose=verbose
        )
        if (refusal := found.refusal) is not None:
            if refusal.graph is not None and isinstance(refusal.error, InfeasibleError):
                smallest = with_micro_batch(run, refusal.micro_batch)
                ways_out = (
                    ()
                    if no_advice
                    else _advice(smallest, refusal.error, host_budget_bytes, profile, report=report, verbose=verbose)
                )
                answers.infeasible(refusal.error, refusal.graph, profile.name, ways_out, found)
            raise refusal.error
        assert found.chosen is not None
        answers.plan(found.chosen.outcome, found.chosen.graph, found.chosen.trace_s, found)
        return
    step, graph, trace_s = trace_run(run, report=report, verbose=verbose)
    with second_interrupt_ends():
        try:
            outcome = solve_graph(
                graph,
                budget=budget_bytes,
                host_budget=host_budget_bytes,
                device=profile,
                limits=limits,
                rehearse=lambda plan: _rehearse(run, step, plan, verbose=verbose),
                report=report,
            )
        except SolveInterrupted as interrupt:
            answers.best_so_far(interrupt, graph, budget_bytes, profile.name, trace_s)
            raise
        except InfeasibleError as error:
            ways_out = (
                () if no_advice else _advice(run, error, host_budget_bytes, profile, report=report, verbose=verbose)
            )
            answers.infeasible(error, graph, profile.name, ways_out)
            raise
    answers.plan(outcome, graph, trace_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answers:
    """How `planner solve` answers about a spec: a plan file at `path` and a report, or the plan alone on stdout.

    With the objective throughput, the table of what was tried comes before the report, or is a part of its JSON object.
    """

    spec: str
    path: Path
    memory_bytes: int  # of the device
    is_plan_printed: bool
    as_json: bool

    def plan(self, outcome: "Outcome", graph: "OpGraph", trace_s: float, tried: "Throughput | None" = None) -> None:
        from planner.answers.plans import summary_of
        from planner.plan import format_plan, naming_spec, write_plan
        from planner.reporting import documents, text

        plan = naming_spec(outcome.plan, self.spec, plan_file=self.path)
        if self.is_plan_printed:
            click.echo(format_plan(plan), nl=False)
            return
        write_plan(plan, self.path)
        found = summary_of(plan, outcome, graph, memory_bytes=self.memory_bytes, trace_s=trace_s, path=self.path)
        self._print(documents.plan_document(found), text.plan_text(found), tried)

    def infeasible(
        self,
        error: InfeasibleError,
        graph: "OpGraph",
        device: str,
        ways_out: "tuple[WayOut, ...]",
        tried: "Throughput | None" = None,
    ) -> None:
        from planner.reporting import documents, summary, text

        if self.is_plan_printed and not self.as_json:
            return
        answer = summary.summarize_infeasible(error, graph, device=device, ways_out=ways_out)
        self._print(documents.infeasible_document(answer), text.infeasible_text(answer), tried)

    def best_so_far(
        self, interrupt: SolveInterrupted, graph: "OpGraph", budget_bytes: int, device: str, trace_s: float
    ) -> None:
        from planner.reporting import documents, summary, text

        if self.is_plan_printed:
            return
        if interrupt.plan is None:
            nothing = summary.summarize_nothing(graph, device=device, budget_bytes=budget_bytes)
            self._print(documents.nothing_document(nothing), text.nothing_text(nothing), None)
            return
        found = summary.summarize_plan(
            interrupt.plan, graph, trace_s=trace_s, solve_s=interrupt.solve_s, rehearse_s=0.0, path=None
        )
        self._print(documents.plan_document(found), text.plan_text(found), None)

    def interrupted(self, tried: "Throughput") -> None:
        from planner.reporting.throughput import throughput_document, throughput_text

        if self.as_json:
            print_json(
                {"status": "interrupted", "interrupted": True, "plan": None, "throughput": throughput_document(tried)}
            )
        elif not self.is_plan_printed:
            click.echo(throughput_text(tried))

    def _print(self, document: dict[str, Any], lines: str, tried: "Throughput | None") -> None:
        from planner.reporting.throughput import throughput_document, throughput_text

        if tried is not None:
            document = {**document, "throughput": throughput_document(tried)}
            lines = f"{throughput_text(tried)}\n\n{lines}"
        if self.as_json:
            print_json(document)
        else:
            click.echo(lines)


def _rehearse(run: "RunSpec", step: "Step", plan: "Plan", *, verbose: bool) -> "Rehearsal":
    """What the runtime does with the plan on the run's step."""
    from planner.runtime.rehearsal import rehearse
    from planner.tracing import located_in

    with calm(verbose), no_exit(run), located_in(run):
        return rehearse(step, plan)


def _throughput(
    run: "RunSpec",
    budget_bytes: int,
    host_budget_bytes: int,
    profile: "DeviceProfile",
    micro_batches: tuple[int, ...],
    limits: "Limits",
    answers: _Answers,
    report: Report,
    *,
    verbose: bool,
) -> "Throughput":
    """What came of the search for the fastest micro-batch; when interrupted, what is done is printed."""
    with imports("planner solve"), calm(verbose):
        from planner.throughput import growing_throughput
    growing = growing_throughput(
        run,
        budget=budget_bytes,
        host_budget=host_budget_bytes,
        device=profile,
        micro_batches=micro_batches,
        limits=limits,
        report=report,
    )
    found = next(growing)
    try:
        with calm(verbose), no_exit(run):
            for more in growing:
                found = more
    except BaseException as error:
        if is_interrupt(error):
            answers.interrupted(found)
        raise
    return found


def _advice(
    run: "RunSpec",
    error: InfeasibleError,
    host_budget_bytes: int,
    profile: "DeviceProfile",
    *,
    report: Report,
    verbose: bool,
) -> "tuple[WayOut, ...]":
    from planner.advice import ways_out

    with calm(verbose), no_exit(run):
        return ways_out(
            run, budget_bytes=error.budget_bytes, host_budget=host_budget_bytes, device=profile, report=report
        )
