"""What each technique does for a step's memory, alone and together, and the cheapest combination that fits a budget.

Two mechanisms find peaks. A row is *traced* where the step with its techniques can be traced: the peak is exact and
there are times. What is not traced, sequences shared by ranks and fused losses, comes from the *closed form*, which has
no times. Where both exist, the row is the traced one and has the other's peak beside it.

Left out: rehearsing plans, which `planner solve` does before it writes one.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from math import isqrt

from planner.blocks import block_levels
from planner.costs.static import with_optimizer
from planner.device import DeviceProfile
from planner.errors import InfeasibleError, SpecError, TraceError
from planner.estimation.blocks import Loss
from planner.estimation.from_spec import run_of
from planner.estimation.run import Run
from planner.families import ConfigError, UnknownArchitectureError
from planner.graph import OpGraph, modules, ops, step_info
from planner.planning import describe_point, solve_graph
from planner.problem import Problem, build_problem
from planner.simulation.liveness import Timeline
from planner.solving.baselines import FUSED_ATTENTION, baselines
from planner.solving.peers.offload import offload_all, offload_block_inputs
from planner.solving.search import Limits
from planner.spec import AttentionKernel, ModelKind, RunSpec
from planner.techniques import (
    CHUNKED_CROSS_ENTROPY,
    EIGHT_BIT,
    HAS_8BIT,
    Applicable,
    Keeping,
    Setup,
    alone,
    changes_of,
    closed_form,
    closed_form_peak,
    in_words,
    indivisible,
    own_setup,
    together,
)

_NS_PER_S = 1_000_000_000
# What one plan may take; a comparison solves for several.
PLAN_LIMITS = Limits(time_s=20.0)
# How far the mechanisms may be apart before the reader is told.
AGREEMENT = 0.03
# Differences below this part of the step are none: far less than the cost model can tell.
_ALIKE = 0.001

Trace = Callable[[RunSpec], OpGraph]
Progress = Callable[[str], None]


class Mechanism(StrEnum):
    """What a row's figures come from."""

    TRACED = "traced"
    CLOSED_FORM = "closed form"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A step with some techniques on.

    Attributes:
        name: the techniques.
        changes: what to write in the spec, one for each technique.
        mechanism: what the figures come from.
        fits: the peak is within the budget.
        peak_bytes, peak_at: the peak and the moment it is reached.
        saved_bytes: how much lower it is than that of the spec as it is, by the same mechanism; may be negative.
        saved_share: of the activations of the spec as it is; None where the technique also changes static memory.
        step_s, recompute_s, stall_s: the step's time, and in it replays and waiting for the host; None without times.
        why_no_time: why there are none; empty where there are.
        other_peak_bytes: by the closed form, where the row is traced and it has one.
    """

    name: str
    changes: tuple[str, ...]
    mechanism: Mechanism
    fits: bool
    peak_bytes: int
    peak_at: str
    saved_bytes: int
    saved_share: float | None
    step_s: float | None = None
    recompute_s: float | None = None
    stall_s: float | None = None
    why_no_time: str = ""
    other_peak_bytes: int | None = None

    @property
    def added_s(self) -> float | None:
        """Replays and waiting together."""
        if self.recompute_s is None or self.stall_s is None:
            return None
        return self.recompute_s + self.stall_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """Techniques that have no row, and why."""

    name: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Techniques side by side.

    Attributes:
        model, device: their names.
        budget_bytes: what the step may use.
        static_bytes: of the spec as it is, what no rule for saved tensors changes.
        rows_asked: rows and skipped ones when all is done.
        own: the spec as it is.
        alone: each technique by itself.
        together: combinations.
        skipped: those that have no row.
        missing: why the closed form has nothing on this model; empty if it has.
        notes: assumptions, and where the mechanisms disagree.
    """

    model: str
    device: str
    budget_bytes: int
    static_bytes: int
    rows_asked: int
    own: Row
    alone: tuple[Row, ...] = ()
    together: tuple[Row, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    missing: str = ""
    notes: tuple[str, ...] = ()

    @property
    def rows(self) -> tuple[Row, ...]:
        """All rows, the spec as it is first."""
        return (self.own, *self.alone, *self.together)

    @property
    def is_complete(self) -> bool:
        """Whether every technique has its row or the reason that it has none."""
        return len(self.rows) + len(self.skipped) == self.rows_asked

    @property
    def recommended(self) -> Row | None:
        """The cheapest row that fits; None if none does, or before all are known."""
        assert self.own.step_s is not None
        return cheapest(self.rows, self.own.step_s) if self.is_complete else None


def cheapest(rows: Iterable[Row], step_s: float) -> Row | None:
    """Of the rows that fit: the least added time, then the fewest changes, then the lowest peak; None if none fits.

    Rows without times come after all others: what they add is not known. Those that share sequences among fewer ranks
    come first among them, as they are listed.

    Args:
        rows: to choose from.
        step_s: of the spec as it is.
    """

    def rank(row: Row) -> tuple[bool, int, int, int]:
        added_s = row.added_s
        steps = 0 if added_s is None else round(added_s / (step_s * _ALIKE))
        # Beyond the number of changes, a lower peak of a row without times is more ranks: no reason to prefer it.
        return (added_s is None, steps, len(row.changes), 0 if added_s is None else row.peak_bytes)

    return min((row for row in rows if row.fits), key=rank, default=None)


def growing_comparison(
    spec: RunSpec,
    *,
    budget_bytes: int,
    host_budget_bytes: int,
    device: DeviceProfile,
    trace: Trace,
    limits: Limits = PLAN_LIMITS,
    report: Progress = lambda _: None,
) -> Iterator[Comparison]:
    """The comparison after each row, for who wants to show or keep what is there so far.

    Args:
        spec: the run as it is.
        budget_bytes: what the step may use.
        host_budget_bytes: what offloaded tensors may take of the host.
        device: for times and copies.
        trace: the op graph of a spec; called once for each attention kernel and each loss that needs it.
        limits: time and tolerance for each plan.
        report: called with lines of progress.

    Raises:
        SpecError: the model cannot be built from the spec.
        TraceError: its step cannot run on tensors without data.
    """
    own = own_setup(spec)
    run, missing = _known(spec)
    step = _Step(
        spec=spec,
        budget_bytes=budget_bytes,
        host_budget_bytes=host_budget_bytes,
        device=device,
        trace=trace,
        limits=limits,
        run=run,
        report=report,
    )
    graph = step.graph
    if _is_off(step.own):
        missing = f"it is {_difference(step.own):+.1%} off for the spec as it is"
    it = _applicable(spec, run, graph, is_known=run is not None and not missing)
    asked = [(setup, True) for setup in alone(own, it)] + [(setup, False) for setup in together(own, it)]
    found = Comparison(
        model=step_info(graph).model,
        device=device.name,
        budget_bytes=budget_bytes,
        static_bytes=step_info(graph).static.total_bytes,
        rows_asked=1 + len(asked),
        own=step.own,
        missing=missing,
        notes=step.notes,
    )
    yield found
    off: list[str] = []
    for place, (setup, is_alone) in enumerate(asked, start=2):
        report(f"row {place} of {found.rows_asked}: {in_words(setup, own)}")
        row = step.row(setup)
        if isinstance(row, Skipped):
            found = replace(found, skipped=(*found.skipped, row))
        else:
            if it.is_known and _is_off(row):
                off.append(f"{row.name}: the closed form is {_difference(row):+.1%} off the trace")
            if is_alone:
                found = replace(found, alone=(*found.alone, row))
            else:
                found = replace(found, together=(*found.together, row))
        found = replace(found, notes=(*step.notes, *off))
        yield found


def _known(spec: RunSpec) -> tuple[Run | None, str]:
    """The run in closed form, or why there is none."""
    if spec.model.kind is ModelKind.FACTORY:
        return None, "what a function builds is not known in closed form"
    if spec.loss is not None:
        return None, "a loss other than the model's own is not known in closed form"
    if spec.inputs or spec.batch.sequence_length is None:
        return None, "only models that read tokens are known in closed form"
    try:
        return run_of(spec), ""
    except (UnknownArchitectureError, ConfigError, SpecError) as error:  # the trace reads any model
        return None, str(error)


def _applicable(spec: RunSpec, run: Run | None, graph: OpGraph, *, is_known: bool) -> Applicable:
    has_kernel = any(op.name.rpartition(".")[0] in FUSED_ATTENTION for op in ops(graph))
    return Applicable(
        attends=has_kernel or spec.attention is AttentionKernel.EAGER,
        is_known=is_known,
        is_decoder=run is not None and run.architecture.causal,
        has_8bit=spec.optimizer.name in HAS_8BIT,
        has_blocks=bool(block_levels(modules(graph))),
    )


def _difference(row: Row) -> float:
    """How far the closed form is from the trace, as a fraction of it; 0 where there is but one of them."""
    return 0.0 if row.other_peak_bytes is None else row.other_peak_bytes / row.peak_bytes - 1


def _is_off(row: Row) -> bool:
    return abs(_difference(row)) > AGREEMENT


class _Step:
    """Rows of one spec; what is traced and built for one is kept for the next."""

    def __init__(
        self,
        *,
        spec: RunSpec,
        budget_bytes: int,
        host_budget_bytes: int,
        device: DeviceProfile,
        trace: Trace,
        limits: Limits,
        run: Run | None,
        report: Progress,
    ) -> None:
        self._spec, self._own_setup = spec, own_setup(spec)
        self._budget_bytes, self._host_budget_bytes, self._device = budget_bytes, host_budget_bytes, device
        self._trace, self._limits, self._run, self._report = trace, limits, run, report
        self._graphs: dict[tuple[AttentionKernel, Loss], OpGraph | SpecError | TraceError] = {}
        self._problems: dict[tuple[AttentionKernel, Loss, bool], tuple[OpGraph, Problem]] = {}
        first = self._required(self._own_setup)
        self._static_bytes = step_info(first).static.total_bytes
        levels = block_levels(modules(first))
        self._group = max(1, isqrt(len(levels[0]))) if levels else 1
        own = self._traced(self._own_setup)
        assert isinstance(own, Row)
        self.own = own

    @property
    def graph(self) -> OpGraph:
        """The traced step of the spec as it is."""
        return self._problem(self._own_setup)[0]

    def row(self, setup: Setup) -> Row | Skipped:
        """The row of a setup, or why it has none."""
        if setup.is_parallel or setup.loss not in (Loss.FULL, Loss.CHUNKED):
            return self._in_closed_form(setup)
        return self._traced(setup)

    @property
    def notes(self) -> tuple[str, ...]:
        """Assumptions made in all traces so far, each once."""
        graphs = (graph for graph in self._graphs.values() if not isinstance(graph, SpecError | TraceError))
        return tuple(dict.fromkeys(note for graph in graphs for note in step_info(graph).notes))

    # -- traced

    def _required(self, setup: Setup) -> OpGraph:
        """The traced step with the setup's kernels.

        Raises:
            TraceError, SpecError: it cannot be traced.
        """
        key = (setup.attention, setup.loss)
        if key not in self._graphs:
            loss = CHUNKED_CROSS_ENTROPY if setup.loss is Loss.CHUNKED else self._spec.loss
            changed = replace(self._spec, attention=setup.attention, loss=loss)
            try:
                self._graphs[key] = self._trace(changed)
            except (SpecError, TraceError) as error:
                self._graphs[key] = error
        found = self._graphs[key]
        if isinstance(found, SpecError | TraceError):
            raise found
        return found

    def _problem(self, setup: Setup) -> tuple[OpGraph, Problem]:
        key = (setup.attention, setup.loss, setup.is_8bit)
        if key not in self._problems:
            graph = self._required(setup)
            if setup.is_8bit:
                graph = _in_8bit(graph, self._spec.precision.parameters)
            problem = build_problem(graph, self._device, host_budget_bytes=self._host_budget_bytes)
            self._problems[key] = graph, problem
        return self._problems[key]

    def _traced(self, setup: Setup) -> Row | Skipped:
        try:
            graph, problem = self._problem(setup)
        except (TraceError, SpecError) as error:  # not every model runs with every kernel
            if setup == self._own_setup:
                raise
            return self._skipped(setup, str(error))
        if setup.keeping is Keeping.PLAN:
            return self._planned(setup, graph)
        timeline = _timeline(setup.keeping, problem, graph)
        if timeline is None:
            why = "nothing is large enough, or it is more than the host budget" if problem.link else "no host budget"
            return self._skipped(setup, why)
        return self._row(
            setup,
            Mechanism.TRACED,
            timeline.peak_bytes,
            describe_point(graph, problem, timeline.peak),
            step_s=(problem.step_ns + timeline.added_ns) / _NS_PER_S,
            recompute_s=timeline.recompute_ns / _NS_PER_S,
            stall_s=timeline.stall_ns / _NS_PER_S,
            other_peak_bytes=self._closed_form_peak(setup),
        )

    def _planned(self, setup: Setup, graph: OpGraph) -> Row:
        try:
            outcome = solve_graph(
                graph,
                budget=self._budget_bytes,
                host_budget=self._host_budget_bytes,
                device=self._device,
                limits=self._limits,
                report=self._report,
            )
        except InfeasibleError as error:
            why = "no plan fits" if error.is_proven else "no plan was found that fits"
            return self._row(
                setup,
                Mechanism.TRACED,
                error.smallest_peak_bytes,
                error.where,
                why_no_time=f"{why}, and the peak is the smallest",
            )
        predicted = outcome.plan.predicted
        return self._row(
            setup,
            Mechanism.TRACED,
            predicted.peak_bytes,
            predicted.peak_at,
            step_s=predicted.step_s,
            recompute_s=predicted.recompute_s,
            stall_s=predicted.stall_s,
        )

    # -- in closed form

    def _in_closed_form(self, setup: Setup) -> Row | Skipped:
        assert self._run is not None, "setups without a trace are only asked for known models"
        if (why := indivisible(self._run, setup)) is not None:
            return self._skipped(setup, why)
        # Nothing of it is traced, so what it starts from must agree with the trace.
        start = self._traced(Setup(attention=setup.attention))
        if isinstance(start, Skipped):
            return self._skipped(setup, start.why)
        if _is_off(start):
            return self._skipped(setup, f"{start.name}: the closed form is {_difference(start):+.1%} off the trace")
        run = closed_form(self._run, setup, group=self._group)
        assert run is not None, "these have rules that the closed form knows"
        peak_bytes, where = closed_form_peak(run)
        why = "what ranks exchange is not timed" if setup.is_parallel else "fused losses are not traced"
        return self._row(setup, Mechanism.CLOSED_FORM, peak_bytes, where, why_no_time=why)

    def _closed_form_peak(self, setup: Setup) -> int | None:
        run = None if self._run is None else closed_form(self._run, setup, group=self._group)
        return None if run is None else closed_form_peak(run)[0]

    # -- rows

    def _skipped(self, setup: Setup, why: str) -> Skipped:
        return Skipped(name=in_words(setup, self._own_setup), why=why)

    def _row(
        self,
        setup: Setup,
        mechanism: Mechanism,
        peak_bytes: int,
        peak_at: str,
        *,
        step_s: float | None = None,
        recompute_s: float | None = None,
        stall_s: float | None = None,
        why_no_time: str = "",
        other_peak_bytes: int | None = None,
    ) -> Row:
        is_own = setup == self._own_setup
        before_bytes = peak_bytes if is_own else self.own.peak_bytes
        if mechanism is Mechanism.CLOSED_FORM:
            assert self.own.other_peak_bytes is not None
            before_bytes = self.own.other_peak_bytes
        activations_bytes = before_bytes - self._static_bytes
        is_static_alike = not setup.is_8bit and not setup.is_parallel and activations_bytes > 0
        return Row(
            name=in_words(setup, self._own_setup),
            changes=changes_of(setup, self._own_setup, group=self._group),
            mechanism=mechanism,
            fits=peak_bytes <= self._budget_bytes,
            peak_bytes=peak_bytes,
            peak_at=peak_at,
            saved_bytes=before_bytes - peak_bytes,
            saved_share=(before_bytes - peak_bytes) / activations_bytes if is_static_alike else None,
            step_s=step_s,
            recompute_s=recompute_s,
            stall_s=stall_s,
            why_no_time=why_no_time,
            other_peak_bytes=other_peak_bytes,
        )


def _in_8bit(graph: OpGraph, parameter_dtype: str) -> OpGraph:
    """The same step with the optimizer's state in 8 bits: nothing but static memory changes."""
    info = step_info(graph)
    changed = graph.copy()
    static = with_optimizer(info.static, EIGHT_BIT, parameter_dtype=parameter_dtype)
    changed.graph["step"] = replace(info, static=static)
    return changed


def _timeline(keeping: Keeping, problem: Problem, graph: OpGraph) -> Timeline | None:
    """The step with saved tensors kept by the rule; None where it has nothing to decide."""
    if keeping is Keeping.OFFLOAD_ALL:
        peer = offload_all(problem, graph)
    elif keeping is Keeping.OFFLOAD_INPUTS:
        peer = offload_block_inputs(problem, graph)
    else:
        return next(found.timeline for found in baselines(problem, graph) if found.name == keeping)
    return None if peer is None else peer.timeline
