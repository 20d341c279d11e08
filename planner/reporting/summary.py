"""What a trace and a plan come to: totals, groups by module and op, the largest entries."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from planner.errors import InfeasibleError, WayOut
from planner.graph import (
    OpGraph,
    Phase,
    SavedTensor,
    StaticMemory,
    StorageKind,
    modules,
    ops,
    saved_tensors,
    step_info,
    storages,
    values,
)
from planner.patterns import compress, expand
from planner.plan import Decision, Plan, Retention
from planner.reporting.link import LinkUse
from planner.simulation.reserved import Reserved

_COUNTED_FIRST = (Retention.SAVE, Retention.OFFLOAD, Retention.RECOMPUTE)


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedGroup:
    """Saved tensors that belong together: by module pattern, with its class as `kind`, or by op."""

    name: str
    kind: str
    tensors: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LargeTensor:
    """One saved tensor; `size_bytes` is that of its storage."""

    module_fqn: str
    op: str
    shape: tuple[int, ...]
    dtype: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSummary:
    """What one training step consists of.

    Attributes:
        saved_tensors: everything autograd packs, parameters and inputs included.
        saved_activations: those of them that a plan decides about.
        saved_bytes: of the activations, each storage once.
        reserved: by PyTorch's allocator, when everything that autograd saves is kept.
        by_module, by_op: the activations in groups, the largest first; a storage counts where it is first
            saved.
        largest: the largest activations, each storage once.
        seconds: what tracing took.
    """

    model: str
    torch_version: str
    attention: str
    tokens: int
    parameters: int
    forward_flops: int
    backward_flops: int
    ops: int
    saved_tensors: int
    saved_activations: int
    saved_bytes: int
    static: StaticMemory
    reserved: Reserved
    by_module: tuple[SavedGroup, ...]
    by_op: tuple[SavedGroup, ...]
    largest: tuple[LargeTensor, ...]
    notes: tuple[str, ...]
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionTotal:
    """How many saved tensors share a retention, and the bytes of their storages, each once."""

    retention: Retention
    tensors: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionGroup:
    """Decisions that are alike: the same op, shape and retention in the modules of a pattern."""

    modules: str
    op: str
    shape: tuple[int, ...]
    retention: Retention
    tensors: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleDecisions:
    """What becomes of the tensors that the modules of a pattern, all of class `kind`, save: a total by retention."""

    modules: str
    kind: str
    totals: tuple[RetentionTotal, ...]

    @property
    def size_bytes(self) -> int:
        """Of all of them."""
        return sum(total.size_bytes for total in self.totals)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSummary:
    """A plan with what a reader wants to know beside it.

    Attributes:
        retentions: totals, one for each retention that occurs.
        groups: the largest decisions, by bytes.
        link: the timeline of the link; None for a plan that offloads nothing, and if the solver was interrupted.
        reserved: by PyTorch's allocator; None if the solver was interrupted.
        path: where the plan was written; None if the solver was interrupted: then it was neither rehearsed nor written.
    """

    plan: Plan
    static: StaticMemory
    retentions: tuple[RetentionTotal, ...]
    groups: tuple[DecisionGroup, ...]
    link: LinkUse | None
    reserved: Reserved | None
    notes: tuple[str, ...]
    trace_s: float
    solve_s: float
    rehearse_s: float
    path: Path | None

    @property
    def added_s(self) -> float:
        """What the plan adds to the step: replays, and waiting for the link."""
        return self.plan.predicted.recompute_s + self.plan.predicted.stall_s

    @property
    def gap_of_step(self) -> float:
        """How much of that a better plan could save at most, as a share of the step."""
        step_s = self.plan.predicted.step_s
        return max(0.0, self.added_s - self.plan.solver.bound_s) / step_s if step_s else 0.0

    @property
    def is_interrupted(self) -> bool:
        """Whether this is merely the best plan when the solver was interrupted."""
        return self.path is None


@dataclass(frozen=True, slots=True, kw_only=True)
class NothingSummary:
    """That the solver was interrupted before it had any plan."""

    model: str
    device: str
    budget_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InfeasibleSummary:
    """Why no plan fits, and what would change that."""

    message: str
    model: str
    device: str
    static: StaticMemory
    budget_bytes: int
    smallest_peak_bytes: int
    smallest_peak_at: str
    bound_bytes: int
    is_proven: bool
    ways_out: tuple[WayOut, ...]
    notes: tuple[str, ...]


def summarize_trace(graph: OpGraph, *, reserved: Reserved, seconds: float, top: int = 10) -> TraceSummary:
    """The summary of a traced step, with at most `top` entries in each list."""
    info = step_info(graph)
    kept = _activations(graph)
    first = _first_on_each_storage(graph, kept)
    flops = {
        phase: sum(op.flops for op in ops(graph) if op.phase is phase) for phase in (Phase.FORWARD, Phase.BACKWARD)
    }
    return TraceSummary(
        model=info.model,
        torch_version=info.torch_version,
        attention=info.attention,
        tokens=info.tokens,
        parameters=info.parameters,
        forward_flops=flops[Phase.FORWARD],
        backward_flops=flops[Phase.BACKWARD],
        ops=len(graph),
        saved_tensors=len(saved_tensors(graph)),
        saved_activations=len(kept),
        saved_bytes=sum(first.values()),
        static=info.static,
        reserved=reserved,
        by_module=_by_module(graph, kept, first)[:top],
        by_op=_largest_groups((saved.op, "", first.get(saved.index, 0)) for saved in kept)[:top],
        largest=tuple(
            LargeTensor(
                module_fqn=saved.module_fqn,
                op=saved.op,
                shape=saved.shape,
                dtype=saved.dtype,
                size_bytes=first[saved.index],
            )
            for saved in sorted(
                (saved for saved in kept if saved.index in first), key=lambda saved: -first[saved.index]
            )[:top]
        ),
        notes=info.notes,
        seconds=seconds,
    )


def summarize_plan(
    plan: Plan,
    graph: OpGraph,
    *,
    trace_s: float,
    solve_s: float,
    rehearse_s: float,
    path: Path | None,
    link: LinkUse | None = None,
    reserved: Reserved | None = None,
    top: int = 10,
) -> PlanSummary:
    """The summary of a plan for a traced step, with at most `top` groups of decisions."""
    sizes = _decision_sizes(plan, graph)
    info = step_info(graph)
    return PlanSummary(
        plan=plan,
        static=info.static,
        retentions=_retentions(plan.decisions, sizes),
        groups=_decision_groups(plan.decisions, sizes)[:top],
        link=link,
        reserved=reserved,
        notes=info.notes,
        trace_s=trace_s,
        solve_s=solve_s,
        rehearse_s=rehearse_s,
        path=path,
    )


def summarize_infeasible(
    error: InfeasibleError, graph: OpGraph, *, device: str, ways_out: tuple[WayOut, ...]
) -> InfeasibleSummary:
    """The summary of the answer that no plan fits a traced step."""
    info = step_info(graph)
    return InfeasibleSummary(
        message=str(error),
        model=info.model,
        device=device,
        static=info.static,
        budget_bytes=error.budget_bytes,
        smallest_peak_bytes=error.smallest_peak_bytes,
        smallest_peak_at=error.where,
        bound_bytes=error.bound_bytes,
        is_proven=error.is_proven,
        ways_out=ways_out,
        notes=info.notes,
    )


def summarize_nothing(graph: OpGraph, *, device: str, budget_bytes: int) -> NothingSummary:
    """The summary of a search that was interrupted before it had any plan."""
    return NothingSummary(model=step_info(graph).model, device=device, budget_bytes=budget_bytes)


def decisions_by_module(plan: Plan, graph: OpGraph) -> tuple[ModuleDecisions, ...]:
    """The plan's decisions by module; modules that differ only in numbers and are of one class together.

    Those with the most bytes first; modules without bytes of their own left out.
    """
    sizes = _decision_sizes(plan, graph)
    classes = {module.fqn: module.class_name for module in modules(graph)}
    found: dict[str, dict[Retention, list[int]]] = {}
    for decision in plan.decisions:
        totals = found.setdefault(decision.module_fqn, {}).setdefault(decision.retention, [0, 0])
        totals[0] += 1
        totals[1] += sizes[_place(decision)]
    rows = []
    for pattern, kind in compress((fqn, classes.get(fqn, "")) for fqn in found):
        members = [found[fqn] for fqn in expand(pattern)]
        totals_by_retention = tuple(
            RetentionTotal(
                retention=retention,
                tensors=sum(member[retention][0] for member in members if retention in member),
                size_bytes=sum(member[retention][1] for member in members if retention in member),
            )
            for retention in Retention
            if any(retention in member for member in members)
        )
        rows.append(ModuleDecisions(modules=pattern, kind=str(kind), totals=totals_by_retention))
    return tuple(sorted((row for row in rows if row.size_bytes), key=lambda row: -row.size_bytes))


_Place = tuple[str, int, int]


def _decision_sizes(plan: Plan, graph: OpGraph) -> dict[_Place, int]:
    """Bytes by decision, each storage once."""
    kept = _activations(graph)
    decisions = {_place(decision): decision for decision in plan.decisions}
    # A storage that one decision saves stays, and otherwise leaves if one offloads it, whatever others on it say.
    order = sorted(kept, key=lambda saved: _COUNTED_FIRST.index(decisions[_place(saved)].retention))
    size = _first_on_each_storage(graph, order)
    return {_place(saved): size.get(saved.index, 0) for saved in kept}


def _place(item: SavedTensor | Decision) -> _Place:
    return item.module_fqn, item.module_call, item.ordinal


def _activations(graph: OpGraph) -> tuple[SavedTensor, ...]:
    """The saved tensors that a plan decides about."""
    return tuple(
        saved
        for saved in saved_tensors(graph)
        if storages(graph)[_storage(graph, saved)].kind is StorageKind.ACTIVATION
    )


def _storage(graph: OpGraph, saved: SavedTensor) -> int:
    return values(graph)[saved.value].storage


def _first_on_each_storage(graph: OpGraph, tensors: Iterable[SavedTensor]) -> dict[int, int]:
    """Bytes of each storage by the index of the first of the tensors that lies in it."""
    seen: set[int] = set()
    sizes: dict[int, int] = {}
    for saved in tensors:
        storage = _storage(graph, saved)
        if storage not in seen:
            seen.add(storage)
            sizes[saved.index] = storages(graph)[storage].size_bytes
    return sizes


def _by_module(graph: OpGraph, kept: Iterable[SavedTensor], first: Mapping[int, int]) -> tuple[SavedGroup, ...]:
    classes = {module.fqn: module.class_name for module in modules(graph)}
    found: dict[str, list[int]] = {}
    for saved in kept:
        totals = found.setdefault(saved.module_fqn, [0, 0])
        totals[0] += 1
        totals[1] += first.get(saved.index, 0)
    groups = []
    for pattern, kind in compress((fqn, classes.get(fqn, "")) for fqn in found):
        members = [found[fqn] for fqn in expand(pattern)]
        groups.append(
            SavedGroup(
                name=pattern,
                kind=str(kind),
                tensors=sum(tensors for tensors, _ in members),
                size_bytes=sum(size for _, size in members),
            )
        )
    return tuple(sorted(groups, key=lambda group: -group.size_bytes))


def _largest_groups(items: Iterable[tuple[str, str, int]]) -> tuple[SavedGroup, ...]:
    found: dict[tuple[str, str], list[int]] = {}
    for name, kind, size_bytes in items:
        totals = found.setdefault((name, kind), [0, 0])
        totals[0] += 1
        totals[1] += size_bytes
    return tuple(
        sorted(
            (
                SavedGroup(name=name, kind=kind, tensors=tensors, size_bytes=size_bytes)
                for (name, kind), (tensors, size_bytes) in found.items()
            ),
            key=lambda group: -group.size_bytes,
        )
    )


def _retentions(decisions: Iterable[Decision], sizes: Mapping[_Place, int]) -> tuple[RetentionTotal, ...]:
    groups = _largest_groups((str(d.retention), "", sizes[_place(d)]) for d in decisions)
    by_name = {group.name: group for group in groups}
    return tuple(
        RetentionTotal(
            retention=retention, tensors=by_name[retention].tensors, size_bytes=by_name[retention].size_bytes
        )
        for retention in Retention
        if retention in by_name
    )


def _decision_groups(decisions: Iterable[Decision], sizes: Mapping[_Place, int]) -> tuple[DecisionGroup, ...]:
    """Decisions alike in op, shape and retention, by module pattern; those without own bytes left out."""
    found: dict[tuple[str, tuple[int, ...], Retention, int], dict[str, list[int]]] = {}
    for decision in decisions:
        size_bytes = sizes[_place(decision)]
        if size_bytes:
            alike = (decision.op, decision.shape, decision.retention, decision.ordinal)
            totals = found.setdefault(alike, {}).setdefault(decision.module_fqn, [0, 0])
            totals[0] += 1
            totals[1] += size_bytes
    groups = [
        DecisionGroup(
            modules=pattern,
            op=op,
            shape=shape,
            retention=retention,
            tensors=sum(by_module[fqn][0] for fqn in expand(pattern)),
            size_bytes=sum(by_module[fqn][1] for fqn in expand(pattern)),
        )
        for (op, shape, retention, _), by_module in found.items()
        for pattern, _ in compress((fqn, None) for fqn in by_module)
    ]
    return tuple(sorted(groups, key=lambda group: -group.size_bytes))
