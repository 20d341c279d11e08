"""The `planner` command: wires specs, tracing, solving and reports together; turns errors into exit codes.

Nothing heavy is imported before a command needs it: `planner --help` loads neither torch nor a solver. What
is printed is made in `planner.reporting`; results go to stdout, progress and errors to stderr.
"""

import errno
import json
import logging
import math
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from planner import __version__
from planner.errors import InfeasibleError, PlannerError, SolveInterrupted, SpecError, UnitError
from planner.extras import needs

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

_INTERRUPTED_STATUS = 130  # 128 + SIGINT, as shells report it
_INTERRUPTED = "error: interrupted"
_STDOUT = "-"

Report = Callable[[str], None]


class _Commands(click.Group):
    """A group whose commands end an error in one line on stderr and the error's exit status."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except PlannerError as error:
            if _is_interrupt(error):
                _say(_INTERRUPTED)
                ctx.exit(_INTERRUPTED_STATUS)
            _say(f"error: {error}")
            ctx.exit(error.exit_status)
        except KeyboardInterrupt:
            _say(_INTERRUPTED)
            ctx.exit(_INTERRUPTED_STATUS)
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise  # click ends quietly when nobody reads on
            _say(f"error: the results cannot be written: {error.strerror or error}")
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115  # or Python would try again at exit, and complain
            ctx.exit(PlannerError.exit_status)


class _Number(click.FloatRange):
    """A finite number within a range: `FloatRange` alone lets nan pass."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


def _sizes(ctx: click.Context, param: click.Parameter, text: str | None) -> tuple[int, ...] | None:
    """The whole numbers of an option, from 1 and separated by commas."""
    if text is None:
        return None
    from planner.spec import MAX_SIZE

    parts = [part.strip() for part in text.split(",")]
    # Text too long for any size is not read: Python refuses thousands of digits.
    if not all(part.isdecimal() and len(part) <= len(str(MAX_SIZE)) and 1 <= int(part) <= MAX_SIZE for part in parts):
        raise click.BadParameter(f"{text!r} is not a list of whole numbers from 1 to {MAX_SIZE:,}, such as 1,2,4.")
    return tuple(int(part) for part in parts)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="planner")
def main() -> None:
    """Plan which saved tensors of a PyTorch training step to save, to recompute and to offload to the host.

    \b
    Examples:
      planner solve examples/llama-3-8b.yaml --budget 40GB
      planner trace examples/llama-3-8b.yaml
      planner devices

    Exit status: 0 done; 1 no plan fits the budget; 2 the input cannot be used; 130 interrupted.
    """


_json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
_host_budget_option = click.option(
    "--host-budget",
    metavar="SIZE",
    help="Pinned host memory that offloaded tensors may take; 0 for no offloading [default: half of the device's "
    "host_memory].",
)
_quiet_option = click.option("--quiet", "-q", is_flag=True, help="No progress on stderr.")
_verbose_option = click.option(
    "--verbose", "-v", is_flag=True, help="Let warnings and log lines of torch and the model through."
)


@main.command()
@click.argument("spec")
@click.option("--budget", required=True, metavar="SIZE", help="Memory the step may use: 40GB (10^9) or 37.5GiB (2^30).")
@_host_budget_option
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
    callback=_sizes,
    metavar="1,2,4",
    help="With --objective throughput, try these [default: search from the spec's].",
)
@click.option("--output", "-o", metavar="PLAN", help="Plan file [default: <SPEC>.plan.yaml here]; - for stdout.")
@click.option(
    "--time-limit",
    type=_Number(min=0, min_open=True),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="Stop solving then, with the best plan found.",
)
@click.option(
    "--gap",
    type=_Number(min=0, max=1),
    default=0.005,
    show_default=True,
    metavar="FRACTION",
    help="Stop once what the plan adds to the step is within this fraction of the least possible.",
)
@click.option("--no-advice", is_flag=True, help="When no plan fits, do not look for changes that would.")
@_json_option
@_quiet_option
@_verbose_option
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

    \b
    Examples:
      planner solve examples/llama-3-8b.yaml --budget 40GB
      planner solve model.yaml --budget 22GiB --device rtx-4090 -o plans/4090.yaml
      planner solve model.yaml --budget 80GB --objective throughput --micro-batches 8,16,24,32
      planner solve model.yaml --budget 40GB --json --quiet | jq .predicted_peak_bytes
    """
    if as_json and output == _STDOUT:
        raise click.UsageError("--json and -o - both print to stdout; use one of them")
    if micro_batches is not None and objective == "time":
        raise click.UsageError("--micro-batches needs --objective throughput")
    report = _progress(quiet)
    budget_bytes = _budget(budget)
    run = _load(spec)
    profile = _device(run, device)
    host_budget_bytes = _host_budget(profile, host_budget)
    path = Path(f"{Path(spec).stem}.plan.yaml" if output is None else output)
    with _imports("planner solve"):
        from planner.plan import check_writable
        from planner.planning import solve_graph
        from planner.solving.search import Limits
        from planner.spec import with_micro_batch
    if output != _STDOUT:
        check_writable(path)
    if budget_bytes > profile.memory_bytes:
        _say(f"warning: the budget of {budget} is more than the {profile.memory_bytes / 1e9:.1f} GB of {profile.name}")
    say = _Answers(path=path, is_plan_printed=output == _STDOUT, as_json=as_json)
    limits = Limits(time_s=time_limit, gap=gap)
    if objective == "throughput":
        found = _throughput(
            run, budget_bytes, host_budget_bytes, profile, micro_batches or (), limits, say, report, verbose=verbose
        )
        if (refusal := found.refusal) is not None:
            if refusal.graph is not None and isinstance(refusal.error, InfeasibleError):
                smallest = with_micro_batch(run, refusal.micro_batch)
                ways_out = (
                    ()
                    if no_advice
                    else _advice(smallest, refusal.error, host_budget_bytes, profile, report=report, verbose=verbose)
                )
                say.infeasible(refusal.error, refusal.graph, profile.name, ways_out, found)
            raise refusal.error
        assert found.chosen is not None
        say.plan(found.chosen.outcome, found.chosen.graph, found.chosen.trace_s, found)
        return
    step, graph, trace_s = _trace(run, report=report, verbose=verbose)
    with _second_interrupt_ends():
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
            say.best_so_far(interrupt, graph, budget_bytes, profile.name, trace_s)
            raise
        except InfeasibleError as error:
            ways_out = (
                () if no_advice else _advice(run, error, host_budget_bytes, profile, report=report, verbose=verbose)
            )
            say.infeasible(error, graph, profile.name, ways_out)
            raise
    say.plan(outcome, graph, trace_s)


@main.command()
@click.argument("spec")
@click.option(
    "--points",
    type=click.IntRange(min=2),
    default=8,
    show_default=True,
    help="How many budgets, the smallest reachable peak and that of saving everything included.",
)
@_host_budget_option
@click.option("--device", metavar="NAME|FILE", help="A name from `planner devices` or a profile file.")
@click.option("--peers", is_flag=True, help="Also run the rules that other tools decide by.")
@click.option("--output", "-o", metavar="FILE", help="Draw a picture there: FILE.png or FILE.svg.")
@click.option(
    "--time-limit",
    type=_Number(min=0, min_open=True),
    default=20.0,
    show_default=True,
    metavar="SECONDS",
    help="Stop solving for a budget then, with the best plan found.",
)
@click.option(
    "--gap",
    type=_Number(min=0, max=1),
    default=0.005,
    show_default=True,
    metavar="FRACTION",
    help="Go on to the next budget once what the plan adds is within this fraction of the least possible.",
)
@_json_option
@_quiet_option
@_verbose_option
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
    picture_format = None if output is None else _picture_format(output)
    report = _progress(quiet)
    run = _load(spec)
    profile = _device(run, device)
    host_budget_bytes = _host_budget(profile, host_budget)
    with _imports("planner frontier"):
        from planner.plan import check_writable, write_whole
        from planner.reporting.frontier import frontier_document, frontier_text
        from planner.solving.search import Limits
        from planner.tradeoff import growing_frontier
    if output is not None:
        with _imports("planner frontier --output", extra="plot"):
            from planner.reporting.picture import picture
        check_writable(Path(output))
    _, graph, _ = _trace(run, report=report, verbose=verbose)
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
            _print_json(frontier_document(found))
        else:
            click.echo(frontier_text(found))
    if output is not None and picture_format is not None:
        write_whole(Path(output), picture(found, picture_format))
        report(f"wrote {output}")


@main.command()
@click.argument("spec")
@click.option(
    "--graph", "graph_file", metavar="FILE.json", help="Write the op graph there, as networkx node-link JSON."
)
@click.option("--top", type=click.IntRange(min=1), default=10, show_default=True, help="Lines in each list.")
@_json_option
@_quiet_option
@_verbose_option
def trace(*, spec: str, graph_file: str | None, top: int, as_json: bool, quiet: bool, verbose: bool) -> None:
    """Show what one training step of SPEC computes and what autograd saves, without weights or a GPU.

    \b
    Examples:
      planner trace examples/llama-3-8b.yaml
      planner trace model.yaml --top 30
      planner trace model.yaml --graph step.json --json
    """
    run = _load(spec)
    with _imports("planner trace"):
        from planner.graph import to_node_link
        from planner.plan import check_writable, write_whole
        from planner.reporting import documents, summary, text
    if graph_file is not None:
        check_writable(Path(graph_file))
    _, graph, trace_s = _trace(run, report=_progress(quiet), verbose=verbose)
    if graph_file is not None:
        content = json.dumps(to_node_link(graph), separators=(",", ":"))
        write_whole(Path(graph_file), content)
    found = summary.summarize_trace(graph, seconds=trace_s, top=top)
    if as_json:
        _print_json(documents.trace_document(found))
    else:
        click.echo(text.trace_text(found))


@main.command()
@click.argument("spec")
@click.argument("plan_file", metavar="PLAN")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)
@click.option("--layers", type=click.IntRange(min=1), metavar="N", help="Build the model with N layers.")
@click.option("--steps", type=click.IntRange(min=1), default=5, show_default=True, help="Timed steps of each kind.")
@_json_option
@_quiet_option
@_verbose_option
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
    On a CPU the step is solved again for the CPU's own operators, at the same relative budget.

    \b
    Examples:
      planner verify examples/gpt2.yaml gpt2.plan.yaml --layers 2
      planner verify model.yaml model.plan.yaml --device cuda --json
    """
    run = _load(spec)
    from planner.plan import load_plan

    plan = load_plan(plan_file)
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # before torch: its profiler prints a line at each start and stop
    with _imports("planner verify"), _calm(verbose):
        from planner.reporting.verification import verification_document, verification_text
        from planner.verification import verify as run_verification
    with _calm(verbose), _no_exit(run):
        found = run_verification(run, plan, device=device, layers=layers, steps=steps, report=_progress(quiet))
    if as_json:
        _print_json(verification_document(found))
    else:
        click.echo(verification_text(found))
    if found.failures:
        raise SystemExit(1)


@main.command()
@_json_option
def devices(*, as_json: bool) -> None:
    """List the device profiles that come with the planner.

    \b
    Examples:
      planner devices
      planner devices --json
    """
    from planner.device import device_names, load_device
    from planner.reporting import catalogue

    profiles = [load_device(name) for name in device_names()]
    if as_json:
        _print_json({"devices": [catalogue.device_document(profile) for profile in profiles]})
    else:
        click.echo(catalogue.devices_text(profiles))


@main.command()
@_json_option
def presets(*, as_json: bool) -> None:
    """List the models whose configuration comes with the planner.

    \b
    Examples:
      planner presets
      planner presets --json
    """
    from planner.presets import load_preset, preset_names
    from planner.reporting import catalogue

    found = [load_preset(name) for name in preset_names()]
    if as_json:
        _print_json({"presets": [catalogue.preset_document(preset) for preset in found]})
    else:
        click.echo(catalogue.presets_text(found))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answers:
    """How `planner solve` answers: a plan file at `path` and a report, or the plan alone on stdout.

    With the objective throughput, the table of what was tried comes before the report, or is a part of its JSON object.
    """

    path: Path
    is_plan_printed: bool
    as_json: bool

    def plan(self, outcome: "Outcome", graph: "OpGraph", trace_s: float, tried: "Throughput | None" = None) -> None:
        from planner.plan import format_plan, write_plan
        from planner.reporting import documents, summary, text
        from planner.reporting.link import summarize_link

        if self.is_plan_printed:
            click.echo(format_plan(outcome.plan), nl=False)
            return
        write_plan(outcome.plan, self.path)
        found = summary.summarize_plan(
            outcome.plan,
            graph,
            trace_s=trace_s,
            solve_s=outcome.solve_s,
            rehearse_s=outcome.rehearse_s,
            path=self.path,
            link=summarize_link(outcome.timeline, outcome.problem, graph),
        )
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
            _print_json(
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
            _print_json(document)
        else:
            click.echo(lines)


def _say(line: str) -> None:
    """One line on stderr, however many the text has: a message from a model's own code may have several."""
    click.echo("planner: " + " ".join(line.split()), err=True)


def _progress(quiet: bool) -> Report:
    return (lambda _: None) if quiet else _say


def _print_json(document: dict[str, Any]) -> None:
    click.echo(json.dumps(document, indent=2, ensure_ascii=False))


def _budget(text: str) -> int:
    from planner.units import parse_bytes

    try:
        return parse_bytes(text)
    except UnitError as error:
        raise UnitError(f"--budget: {error}", text=text) from None


def _host_budget(profile: "DeviceProfile", text: str | None) -> int:
    try:
        budget_bytes = profile.host_budget(text)
    except UnitError as error:
        raise UnitError(f"--host-budget: {error}", text=text or "") from None
    if budget_bytes > profile.host_memory_bytes:
        _say(
            f"warning: the host budget of {text} is more than the {profile.host_memory_bytes / 1e9:.1f} GB of host "
            f"memory of {profile.name}"
        )
    return budget_bytes


def _picture_format(path: str) -> str:
    suffix = Path(path).suffix.lower()
    if suffix not in (".png", ".svg"):
        raise click.BadParameter(f"{path!r} must end in .png or .svg.", param_hint="'--output' / '-o'")
    return suffix.removeprefix(".")


def _load(path: str) -> "RunSpec":
    from planner.spec import load

    return load(path)


def _device(run: "RunSpec", chosen: str | None) -> "DeviceProfile":
    from planner.device import load_device

    if chosen is not None:
        return load_device(chosen)
    return load_device(run.device, directory=Path(run.path).parent)


def _trace(run: "RunSpec", *, report: Report, verbose: bool) -> "tuple[Step, OpGraph, float]":
    """The run's step, its op graph and the seconds both took, imports of torch and the model's library included."""
    started = time.perf_counter()
    with _imports("tracing a model"), _calm(verbose):
        from planner.tracing import located_in, prepare_spec, trace_step
    # The model's library is imported here: an interrupt as an exception can get lost there, as in `_imports`.
    with _on_interrupt(_end), _calm(verbose), _no_exit(run):
        step = prepare_spec(run)
        with located_in(run):
            graph = trace_step(step)
    trace_s = time.perf_counter() - started
    report(f"traced {len(graph):,} ops in {trace_s:.1f} s")
    return step, graph, trace_s


def _rehearse(run: "RunSpec", step: "Step", plan: "Plan", *, verbose: bool) -> "Rehearsal":
    """What the runtime does with the plan on the run's step."""
    from planner.runtime.rehearsal import rehearse
    from planner.tracing import located_in

    with _calm(verbose), _no_exit(run), located_in(run):
        return rehearse(step, plan)


def _throughput(
    run: "RunSpec",
    budget_bytes: int,
    host_budget_bytes: int,
    profile: "DeviceProfile",
    micro_batches: tuple[int, ...],
    limits: "Limits",
    say: _Answers,
    report: Report,
    *,
    verbose: bool,
) -> "Throughput":
    """What came of the search for the fastest micro-batch; when interrupted, what is done is printed."""
    with _imports("planner solve"), _calm(verbose):
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
        with _calm(verbose), _no_exit(run):
            for more in growing:
                found = more
    except BaseException as error:
        if _is_interrupt(error):
            say.interrupted(found)
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

    with _calm(verbose), _no_exit(run):
        return ways_out(
            run, budget_bytes=error.budget_bytes, host_budget=host_budget_bytes, device=profile, report=report
        )


def _is_interrupt(error: BaseException) -> bool:
    """Whether an error is what other code made of an interrupt: compiled modules turn it into an ImportError."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, KeyboardInterrupt):
        cause = cause.__cause__ or cause.__context__
    return cause is not None


@contextmanager
def _imports(feature: str, extra: str = "solve") -> Iterator[None]:
    """Around imports of an extra: one that is absent is named, and an interrupt ends the process there and then.

    An exception would not do: raised while a compiled module loads, it comes out as an ImportError that has
    lost its cause. Nothing is open yet that ending could leave half done.
    """
    with _on_interrupt(_end), needs(feature, extra):
        yield


def _end(signum: int, frame: FrameType | None) -> None:
    """The signal handler that ends the process there and then."""
    _say(_INTERRUPTED)
    os._exit(_INTERRUPTED_STATUS)


@contextmanager
def _second_interrupt_ends() -> Iterator[None]:
    """The first Ctrl-C is an exception, so that what there is can be shown; another one ends the process at once."""

    def interrupt(signum: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, _end)
        raise KeyboardInterrupt

    with _on_interrupt(interrupt):
        yield


@contextmanager
def _on_interrupt(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Ctrl-C is handled so meanwhile, but in a thread: only the main one may set handlers."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _calm(verbose: bool) -> Iterator[None]:
    """While the model's code runs: no warnings or log lines, and what it prints stays out of our results."""
    with redirect_stdout(sys.stderr), nullcontext() if verbose else warnings.catch_warnings():
        if verbose:
            yield
            return
        warnings.simplefilter("ignore")
        before = logging.root.manager.disable
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(before)


@contextmanager
def _no_exit(run: "RunSpec") -> Iterator[None]:
    """While the model's code runs: what would end the process silently is an error like any other."""
    try:
        yield
    except (Exception, KeyboardInterrupt):
        raise
    except BaseException as error:  # SystemExit, GeneratorExit, and what test libraries raise to skip
        line = run.lines[("model",)].line if run.lines else None
        what = f"with exit status {error.code or 0}" if isinstance(error, SystemExit) else f"by {type(error).__name__}"
        raise SpecError(f"the model's code ended the program {what}", path=run.path, line=line, key="model") from error


if __name__ == "__main__":
    main()
