"""The micro-batch that trains on the most tokens per second within a memory budget, and its plan.

A larger micro-batch spreads what every step costs, such as launches and the optimizer, over more tokens, but leaves
less memory for each, so that more is recomputed. Each micro-batch tried is solved for the budget; what counts is its
tokens over its predicted step, recomputation and stalls included. Between those tried nothing is known: a result says
which they were.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import count, takewhile
from pathlib import Path
from typing import Any

import planner.tracing as tracing
from planner.device import DeviceProfile, load_device
from planner.errors import InfeasibleError, PlannerError, SpecError, TraceError
from planner.graph import OpGraph, step_info
from planner.plan import Plan
from planner.planning import Outcome, solve_graph
from planner.runtime.rehearsal import rehearse
from planner.scaling import SharedTraces
from planner.simulation.rehearsal import Rehearsal
from planner.solving.search import Limits
from planner.spec import MAX_SIZE, RunSpec, batched_inputs, with_micro_batch
from planner.units import as_bytes, format_rate

# A doubling or halving that gains less than this share counts as none: about what the solver's gap leaves open.
_LEAST_GAIN = 0.001
# So many doublings or halvings in a row without a gain end a direction: one alone may be a dip.
_PATIENCE = 2
# How often to look halfway between the fastest and its neighbours, which gets within an eighth of a doubling.
_REFINEMENTS = 3
_BYTES_PER_GB = 1e9

Progress = Callable[[str], None]


class Verdict(StrEnum):
    """What came of a micro-batch."""

    FITS = "fits"
    TOO_LARGE = "too large"
    HOPELESS = "too large at any size"  # parameters, gradients and the optimizer step alone exceed the budget
    FAILED = "failed"  # the model does not run with it
    NOT_TRIED = "not tried"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One micro-batch, and the cheapest plan found for it.

    Attributes:
        micro_batch: samples per device.
        verdict: what came of it; unless it fits, all of the plan is 0.
        tokens: samples × sequence length, or samples.
        step_s: predicted step, with `recompute_s` of replay and `stall_s` of waiting for the host link.
        peak_bytes: of the plan, or the smallest found if it is too large.
        gap: how far what the plan adds can be from the least possible, as a fraction of it.
        is_scaled: its graph was scaled from those of other micro-batches, not traced.
        is_rehearsed: its graph was traced and the peak is that of a rehearsal.
        why: for a person, unless it fits.
    """

    micro_batch: int
    verdict: Verdict
    tokens: int = 0
    step_s: float = 0.0
    recompute_s: float = 0.0
    stall_s: float = 0.0
    peak_bytes: int = 0
    gap: float = 0.0
    is_scaled: bool = False
    is_rehearsed: bool = False
    why: str = ""

    @property
    def tokens_per_s(self) -> float:
        """Tokens trained on per second and device; 0 unless it fits."""
        return self.tokens / self.step_s if self.step_s else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The fastest micro-batch with all that there is to it.

    Attributes:
        attempt: its row.
        outcome: its plan, rehearsed.
        graph: the trace that the plan is for.
        trace_s: what that trace took.
    """

    attempt: Attempt
    outcome: Outcome
    graph: OpGraph
    trace_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why nothing fits: what the smallest micro-batch that is too large lacks, or else why the model does not run.

    Attributes:
        micro_batch: the one it is about.
        error: what solving it raised.
        graph: of that micro-batch; None where the model does not run.
    """

    micro_batch: int
    error: PlannerError
    graph: OpGraph | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """Micro-batches against tokens per second, by rising micro-batch.

    Attributes:
        model, device: their names.
        budget_bytes: what each step may use.
        unit: "tokens", or "samples" for a model without a sequence length.
        own_micro_batch: the spec's.
        is_given: the user named the micro-batches; otherwise they were searched for.
        tried: what is done so far.
        chosen: None until the search has ended, and when nothing fits.
        refusal: None until the search has ended, and when something fits.
        notes: what was assumed.
    """

    model: str
    device: str
    budget_bytes: int
    unit: str
    own_micro_batch: int
    is_given: bool
    tried: tuple[Attempt, ...]
    chosen: Chosen | None = None
    refusal: Refusal | None = None
    notes: tuple[str, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether the search has ended."""
        return self.chosen is not None or self.refusal is not None


def best_throughput(
    spec: RunSpec,
    *,
    budget: str | int,
    host_budget: str | int | None = None,
    device: str | Mapping[str, Any] | DeviceProfile | None = None,
    micro_batches: Iterable[int] = (),
    limits: Limits = Limits(),  # noqa: B008  # frozen
    report: Progress = lambda _: None,
) -> Throughput:
    """The micro-batch with the most tokens per second within the budget, its rehearsed plan, and all that were tried.

    Args:
        spec: from `planner.load`; nothing but its micro-batch is changed.
        budget: bytes, or text with a unit such as "40GB" (10⁹) or "40GiB" (2³⁰).
        host_budget: see `planner.solve`.
        device: a profile, its name, or a mapping that describes one; the spec's unless given.
        micro_batches: which to try; empty to search from the spec's.
        limits: time and tolerance for each micro-batch.
        report: called with lines of progress.

    Raises:
        InfeasibleError: nothing tried fits; it is that of the smallest micro-batch.
        SpecError: the spec does not say where its inputs have the micro-batch, or the model cannot be built.
        TraceError: the model runs with none of the micro-batches.
        ValueError: a micro-batch is below 1, or above what a spec may have.
        UnitError: see `planner.solve`.
    """
    *_, found = growing_throughput(
        spec,
        budget=budget,
        host_budget=host_budget,
        device=device,
        micro_batches=micro_batches,
        limits=limits,
        report=report,
    )
    if found.refusal is not None:
        raise found.refusal.error
    return found


def growing_throughput(
    spec: RunSpec,
    *,
    budget: str | int,
    host_budget: str | int | None = None,
    device: str | Mapping[str, Any] | DeviceProfile | None = None,
    micro_batches: Iterable[int] = (),
    limits: Limits = Limits(),  # noqa: B008  # frozen
    report: Progress = lambda _: None,
) -> Iterator[Throughput]:
    """The table after each micro-batch, for who wants to show or keep what is there so far; arguments as
    `best_throughput`, which raises what the last table has as its `refusal`.

    The fastest is traced again if its graph was scaled, and its plan is rehearsed; should it then turn out slower than
    another, or not fit, that one is taken up next.
    """
    given = tuple(micro_batches)
    for size in given:
        if not 1 <= size <= MAX_SIZE:
            raise ValueError(f"a micro-batch is from 1 to {MAX_SIZE:,}, not {size}")
        with_micro_batch(spec, size)
    own = spec.batch.micro_batch
    with_micro_batch(spec, own - 1 or 2)  # a spec that does not say where it has its samples is refused before any work
    profile = device if isinstance(device, DeviceProfile) else _device(spec, device)
    bench = _Bench(
        spec,
        budget_bytes=as_bytes(budget),
        host_budget_bytes=profile.host_budget(host_budget),
        device=profile,
        limits=limits,
    )
    found = Throughput(
        model=spec.model.preset or spec.model.name,
        device=profile.name,
        budget_bytes=bench.budget_bytes,
        unit="tokens" if spec.batch.sequence_length else "samples",
        own_micro_batch=own,
        is_given=bool(given),
        tried=(),
        notes=_notes(spec),
    )
    yield found
    for attempt in try_each(bench.attempt, given) if given else search(bench.attempt, own):
        report(_progress_line(attempt, found.unit))
        found = _with_row(found, attempt)
        yield found
    while (best := fastest(found.tried)) is not None and not best.is_rehearsed:
        report(f"micro-batch {best.micro_batch} is the fastest; tracing and rehearsing it")
        found = _with_row(found, bench.rehearsed(best.micro_batch, report))
    if best is None:
        yield replace(found, refusal=bench.refusal)
        return
    yield replace(found, chosen=bench.finished[best.micro_batch])


def _notes(spec: RunSpec) -> tuple[str, ...]:
    if not spec.inputs:
        return ()
    return (f"the first axis is assumed to be the micro-batch in these inputs: {', '.join(batched_inputs(spec))}",)


def _device(spec: RunSpec, device: str | Mapping[str, Any] | None) -> DeviceProfile:
    return load_device(spec.device, directory=Path(spec.path).parent) if device is None else load_device(device)


# ---- which micro-batches to try: nothing below knows what trying one means

TryBatch = Callable[[int], Attempt]


def search(try_batch: TryBatch, start: int) -> Iterator[Attempt]:
    """Attempts at micro-batches, found step by step: doublings and halvings of the first, then between the best.

    Upwards it ends at the first that does not fit, as no larger one can; in both directions after two sizes in a row
    without a gain. Then, up to three times, the sizes halfway between the fastest and its neighbours are tried, so that
    the border of what fits is approached as well where it is the fastest.

    Args:
        try_batch: called once for each micro-batch.
        start: the first; the only one if the model does not run with it, or would fit with no other.
    """
    tried: dict[int, Attempt] = {}

    def look(size: int) -> Attempt:
        tried[size] = try_batch(size)
        return tried[size]

    first = look(start)
    yield first
    if first.verdict in (Verdict.FAILED, Verdict.HOPELESS):
        return
    if first.verdict is Verdict.FITS:
        yield from _walk(look, tried, (start << power for power in count(1)), is_upwards=True)
    halves = takewhile(lambda size: size, (start >> power for power in count(1)))
    yield from _walk(look, tried, halves, is_upwards=False)
    for _ in range(_REFINEMENTS):
        between = _between(tried)
        if not between:
            return
        for size in between:
            yield look(size)


def try_each(try_batch: TryBatch, micro_batches: Iterable[int]) -> Iterator[Attempt]:
    """Attempts at the given micro-batches, by size; those above one that is too large are not tried."""
    too_large: int | None = None
    for size in sorted(set(micro_batches)):
        if too_large is not None:
            yield Attempt(micro_batch=size, verdict=Verdict.NOT_TRIED, why=f"{too_large} is too large already")
            continue
        attempt = try_batch(size)
        if attempt.verdict in (Verdict.TOO_LARGE, Verdict.HOPELESS):
            too_large = size
        yield attempt


def fastest(attempts: Iterable[Attempt]) -> Attempt | None:
    """The attempt with the most tokens per second of those that fit, the smallest of several; None if none fits."""
    fitting = [attempt for attempt in attempts if attempt.verdict is Verdict.FITS]
    return max(fitting, key=lambda attempt: (attempt.tokens_per_s, -attempt.micro_batch), default=None)


def _walk(look: TryBatch, tried: Mapping[int, Attempt], sizes: Iterable[int], *, is_upwards: bool) -> Iterator[Attempt]:
    idle = 0
    for size in sizes:
        before = fastest(tried.values())
        attempt = look(size)
        yield attempt
        if attempt.verdict is not Verdict.FITS:
            if is_upwards:
                return
            continue
        has_gained = before is None or attempt.tokens_per_s > before.tokens_per_s * (1 + _LEAST_GAIN)
        idle = 0 if has_gained else idle + 1
        if idle == _PATIENCE:
            return


def _between(tried: Mapping[int, Attempt]) -> list[int]:
    """Sizes not tried yet that are halfway between the fastest and its neighbours."""
    best = fastest(tried.values())
    if best is None:
        return []
    size = best.micro_batch
    neighbours = (
        max((other for other in tried if other < size), default=size),
        min((other for other in tried if other > size), default=size),
    )
    return [middle for middle in ((size + other) // 2 for other in neighbours) if middle not in tried]


# ---- trying one


class _Bench:
    """Plans a spec's step at one micro-batch after another.

    Attributes:
        budget_bytes, host_budget_bytes: what each may use of the device and of the host.
        finished: what was rehearsed.
    """

    def __init__(
        self, spec: RunSpec, *, budget_bytes: int, host_budget_bytes: int, device: DeviceProfile, limits: Limits
    ) -> None:
        self.budget_bytes = budget_bytes
        self._host_budget_bytes = host_budget_bytes
        self.finished: dict[int, Chosen] = {}
        self._spec, self._device, self._limits = spec, device, limits
        self._refusals: dict[int, Refusal] = {}
        self._traces = SharedTraces(lambda size: tracing.trace_spec(with_micro_batch(spec, size)))

    @property
    def refusal(self) -> Refusal:
        """Why nothing fits."""
        by_size = [refusal for _, refusal in sorted(self._refusals.items())]
        return next((refusal for refusal in by_size if refusal.graph is not None), by_size[0])

    def attempt(self, size: int) -> Attempt:
        """A micro-batch, solved on its graph and not rehearsed."""
        try:
            graph, is_scaled = self._traces.at(size)
        except (TraceError, SpecError) as error:
            self._refusals[size] = Refusal(micro_batch=size, error=error, graph=None)
            return Attempt(micro_batch=size, verdict=Verdict.FAILED, why=str(error))
        try:
            outcome = solve_graph(
                graph,
                budget=self.budget_bytes,
                host_budget=self._host_budget_bytes,
                device=self._device,
                limits=self._limits,
            )
        except InfeasibleError as error:
            return self._too_large(size, error, graph)
        return _fitting(size, outcome, graph, is_scaled=is_scaled)

    def rehearsed(self, size: int, report: Progress) -> Attempt:
        """A micro-batch, traced, solved and rehearsed."""
        spec = with_micro_batch(self._spec, size)
        started = time.perf_counter()
        step = tracing.prepare_spec(spec)

        def rehearsal(plan: Plan) -> Rehearsal:
            with tracing.located_in(spec):
                return rehearse(step, plan)

        with tracing.located_in(spec):
            graph = tracing.trace_step(step)
        trace_s = time.perf_counter() - started
        try:
            outcome = solve_graph(
                graph,
                budget=self.budget_bytes,
                host_budget=self._host_budget_bytes,
                device=self._device,
                limits=self._limits,
                rehearse=rehearsal,
                report=report,
            )
        except InfeasibleError as error:
            return self._too_large(size, error, graph)
        attempt = _fitting(size, outcome, graph, is_scaled=False)
        self.finished[size] = Chosen(attempt=attempt, outcome=outcome, graph=graph, trace_s=trace_s)
        return attempt

    def _too_large(self, size: int, error: InfeasibleError, graph: OpGraph) -> Attempt:
        self._refusals[size] = Refusal(micro_batch=size, error=error, graph=graph)
        proof = "" if error.is_proven else ", and the search ended without a proof"
        optimizer_peak_bytes = step_info(graph).static.optimizer_peak_bytes
        return Attempt(
            micro_batch=size,
            verdict=Verdict.HOPELESS if optimizer_peak_bytes > self.budget_bytes else Verdict.TOO_LARGE,
            peak_bytes=error.smallest_peak_bytes,
            why=f"the smallest peak found is {error.smallest_peak_bytes / _BYTES_PER_GB:.2f} GB{proof}",
        )


def _fitting(size: int, outcome: Outcome, graph: OpGraph, *, is_scaled: bool) -> Attempt:
    predicted = outcome.plan.predicted
    return Attempt(
        micro_batch=size,
        verdict=Verdict.FITS,
        tokens=step_info(graph).tokens,
        step_s=predicted.step_s,
        recompute_s=predicted.recompute_s,
        stall_s=predicted.stall_s,
        peak_bytes=predicted.peak_bytes,
        gap=outcome.plan.solver.gap,
        is_scaled=is_scaled,
        is_rehearsed=outcome.rehearsal is not None,
    )


def _with_row(found: Throughput, attempt: Attempt) -> Throughput:
    """The table with one more row, or with another in the place of one."""
    rows = {row.micro_batch: row for row in (*found.tried, attempt)}
    return replace(found, tried=tuple(rows[size] for size in sorted(rows)))


def _progress_line(attempt: Attempt, unit: str) -> str:
    if attempt.verdict is not Verdict.FITS:
        return f"micro-batch {attempt.micro_batch}: {attempt.verdict}: {attempt.why}"
    return (
        f"micro-batch {attempt.micro_batch}: {format_rate(attempt.tokens_per_s)} {unit}/s, "
        f"peak {attempt.peak_bytes / _BYTES_PER_GB:.2f} GB, "
        f"recompute {attempt.recompute_s / attempt.step_s:.1%} of the step"
        + (", on a scaled graph" if attempt.is_scaled else "")
    )
