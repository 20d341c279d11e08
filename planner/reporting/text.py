"""Summaries as text for a terminal. Sizes are in GB (10⁹ bytes), times in ms or s."""

from collections.abc import Iterable

from planner.graph import StaticMemory
from planner.plan import BaselineRow, Plan
from planner.reporting.link import LinkUse
from planner.reporting.summary import (
    DecisionGroup,
    InfeasibleSummary,
    NothingSummary,
    PlanSummary,
    RetentionTotal,
    SavedGroup,
    TraceSummary,
)
from planner.reporting.tables import count, duration, gigabytes, percent, shape, table, wrapped, written
from planner.simulation.reserved import Limited, Reserved

EVERY_BLOCK = "every block"
_INTERRUPTED = (
    "interrupted: the best plan found so far; not written, since it was not rehearsed; "
    "`--time-limit N` stops the solver by itself and writes"
)
_OVERLOADS = (".default", ".Tensor", ".Scalar", ".self", ".int")


def plan_text(summary: PlanSummary) -> str:
    """What `planner solve` prints when a plan fits, or when one was known as the solver was interrupted."""
    return _joined([found_text(summary)], [written("not written" if summary.is_interrupted else str(summary.path))])


def found_text(summary: PlanSummary) -> str:
    """The same without the last line: for those who write the plan elsewhere, and add `written`."""
    plan = summary.plan
    predicted = plan.predicted
    rehearsed = "not rehearsed" if summary.is_interrupted else f"{duration(summary.rehearse_s)} to rehearse"
    return _joined(
        wrapped(_INTERRUPTED) if summary.is_interrupted else [],
        [
            f"{plan.model.name} on {plan.device}, budget {gigabytes(plan.budget_bytes)}: "
            f"predicted peak {gigabytes(predicted.peak_bytes)}, step {duration(predicted.step_s)}"
        ],
        _static(summary.static),
        _comparison(plan),
        [
            *wrapped(f"Peak at    {short_op(predicted.peak_at)}"),
            *_allocator(summary.reserved),
            *wrapped(f"Solver     {plan.solver.status}: {proof_in_words(summary)}"),
            f"Took       {duration(summary.trace_s)} to trace, {duration(summary.solve_s)} to solve, {rehearsed}",
        ],
        _retentions(plan, summary.retentions),
        _groups(summary.groups),
        _link(summary.link),
        _stretches(summary.link),
        _notes(summary.notes),
    )


def nothing_text(summary: NothingSummary) -> str:
    """What `planner solve` prints when it was interrupted before it had any plan."""
    return (
        f"interrupted: {summary.model} on {summary.device}, budget {gigabytes(summary.budget_bytes)}: "
        "no plan that fits was found so far"
    )


def infeasible_text(summary: InfeasibleSummary) -> str:
    """What `planner solve` prints when no plan fits."""
    verdict = "no plan fits" if summary.is_proven else "no plan was found"
    return _joined(
        [f"{summary.model} on {summary.device}, budget {gigabytes(summary.budget_bytes)}: {verdict}"],
        _static(summary.static),
        [
            f"Smallest peak  {gigabytes(summary.smallest_peak_bytes)}",
            *wrapped(f"Reached at     {short_op(summary.smallest_peak_at)}"),
            f"Lower bound    {gigabytes(summary.bound_bytes)}: no plan can peak below",
        ],
        _ways_out(summary),
        _notes(summary.notes),
    )


def trace_text(summary: TraceSummary) -> str:
    """What `planner trace` prints."""
    return _joined(
        [
            f"{summary.model}, {summary.attention} attention, torch {summary.torch_version}, "
            f"traced in {duration(summary.seconds)}",
        ],
        [
            f"Parameters     {summary.parameters:,}",
            f"Forward        {count(summary.forward_flops, 'FLOPs')}",
            f"Backward       {count(summary.backward_flops, 'FLOPs')}",
            f"Ops            {summary.ops:,}",
            f"Saved tensors  {summary.saved_tensors:,}, of which {summary.saved_activations:,} "
            f"are activations of {gigabytes(summary.saved_bytes)}",
            *wrapped(f"Reserved       {_reserved(summary.reserved)} (with all of it kept)"),
        ],
        _static(summary.static),
        table(
            ("Saved by module", "class", "tensors", "size"),
            [
                (group.name or "(the model)", group.kind, str(group.tensors), gigabytes(group.size_bytes))
                for group in summary.by_module
            ],
            left=2,
        ),
        _saved_by_op(summary.by_op),
        table(
            ("Largest saved tensors", "op", "shape", "size"),
            [
                (
                    tensor.module_fqn or "(the model)",
                    short_op(tensor.op),
                    f"{shape(tensor.shape)} {tensor.dtype}",
                    gigabytes(tensor.size_bytes),
                )
                for tensor in summary.largest
            ],
            left=3,
        ),
        _notes(summary.notes),
    )


def _joined(*parts: list[str]) -> str:
    return "\n\n".join("\n".join(lines) for lines in parts if lines)


def _static(static: StaticMemory) -> list[str]:
    rows = [
        ("Static memory", static.total_bytes),
        ("  parameters", static.parameters_bytes),
        ("  gradients", static.gradients_bytes),
        ("  optimizer state", static.optimizer_bytes),
        ("  gathered by FSDP", static.unsharded_bytes),
        ("Added by the optimizer step", static.optimizer_transient_bytes),
    ]
    return [f"{name:<28}{gigabytes(size):>10}" for name, size in rows if size or not name.startswith("  ")]


def _allocator(reserved: Reserved | None) -> list[str]:
    if reserved is None:
        return []
    return [*wrapped(f"Reserved   {_reserved(reserved)}"), *_limited(reserved.limited)]


def _reserved(reserved: Reserved) -> str:
    default, expandable = reserved.default, reserved.expandable
    return (
        f"{gigabytes(default.reserved_bytes)} by PyTorch's allocator, {gigabytes(expandable.reserved_bytes)} with "
        f"expandable segments: {gigabytes(default.fragmentation_bytes)} and "
        f"{gigabytes(expandable.fragmentation_bytes)} more than is ever in use"
    )


def _limited(limited: Limited | None) -> list[str]:
    """How the allocator gets by on the device, where that is not enough for what it would reserve."""
    if limited is None or (limited.default_retries, limited.expandable_retries) == (0, 0):
        return []
    default, expandable = _got_by(limited.default_retries), _got_by(limited.expandable_retries)
    with_expandable = "as well" if default == expandable else f"it {expandable}"
    return wrapped(
        f"In {gigabytes(limited.limit_bytes)} it {default}; with expandable segments {with_expandable}", indent="    "
    )


def _got_by(retries: int | None) -> str:
    if retries is None:
        return "runs out of memory"
    if not retries:
        return "has enough"
    return f"has to give back unused memory {'once' if retries == 1 else f'{retries} times'} a step"


def _comparison(plan: Plan) -> list[str]:
    """This plan beside the ways by hand, which never wait."""
    predicted = plan.predicted
    every = next((row.recompute_s for row in plan.baselines if row.name == EVERY_BLOCK), 0.0)
    own = BaselineRow(
        name="this plan",
        fits=predicted.peak_bytes <= plan.budget_bytes,
        peak_bytes=predicted.peak_bytes,
        step_s=predicted.step_s,
        recompute_s=predicted.recompute_s,
    )
    rows = [(own, predicted.stall_s), *((row, 0.0) for row in plan.baselines)]
    waiting = ("waiting",) if predicted.stall_s else ()
    return table(
        ("", "fits", "peak", "step", "recompute", *waiting, "of every block's"),
        [
            (
                row.name,
                "yes" if row.fits else "no",
                gigabytes(row.peak_bytes),
                duration(row.step_s),
                duration(row.recompute_s),
                *(duration(stall_s) for _ in waiting),
                percent((row.recompute_s + stall_s) / every) if every else "",
            )
            for row, stall_s in rows
        ],
    )


def proof_in_words(summary: PlanSummary) -> str:
    """What the plan adds beside the least that any could."""
    proof = summary.plan.solver
    if not summary.added_s:
        return "adds nothing to the step"
    if not proof.gap:
        return f"adds {duration(summary.added_s)}, no plan adds less"
    gap = f"gap {percent(proof.gap)}, {percent(summary.gap_of_step)} of the step"
    return f"adds {duration(summary.added_s)}, no plan adds less than {duration(proof.bound_s)} ({gap})"


def _link(link: LinkUse | None) -> list[str]:
    if link is None:
        return []
    tensors = "tensor" if link.tensors == 1 else "tensors"
    return [
        *wrapped(
            f"Host link  {link.tensors:,} {tensors} of {gigabytes(link.size_bytes)} out and back, in "
            f"{gigabytes(link.host_bytes)} of {gigabytes(link.host_budget_bytes)} of host memory; busy "
            f"{percent(link.forward_busy)} of forward and {percent(link.backward_busy)} of backward; the device waits "
            f"{duration(link.stall_s)}"
        ),
        *wrapped(
            f"Staging    holds {gigabytes(link.staged_out_bytes)} on the way out and "
            f"{gigabytes(link.staged_back_bytes)} on the way back at most, and may hold "
            f"{gigabytes(link.staging.out_bytes)} and {gigabytes(link.staging.back_bytes)}"
        ),
    ]


def _stretches(link: LinkUse | None) -> list[str]:
    if link is None:
        return []
    return table(
        ("Link", "during", "from", "to", "out", "back", "busy", "waiting"),
        [
            (
                str(stretch.phase),
                stretch.modules,
                duration(stretch.start_s),
                duration(stretch.end_s),
                gigabytes(stretch.out_bytes) if stretch.out_bytes else "",
                gigabytes(stretch.back_bytes) if stretch.back_bytes else "",
                percent(stretch.busy),
                duration(stretch.stall_s),
            )
            for stretch in link.stretches
        ],
        left=2,
    )


def _retentions(plan: Plan, retentions: Iterable[RetentionTotal]) -> list[str]:
    rows = [
        (str(total.retention), f"{total.tensors:,} saved tensors", gigabytes(total.size_bytes)) for total in retentions
    ]
    if plan.anchors:
        size_bytes = sum(anchor.size_bytes for anchor in plan.anchors)
        rows.append(("hold also", f"{len(plan.anchors):,} module inputs or outputs", gigabytes(size_bytes)))
    return table(("Decisions", "", "size"), rows, left=2)


def _groups(groups: Iterable[DecisionGroup]) -> list[str]:
    return table(
        ("Largest", "modules", "op", "tensors", "size"),
        [
            (
                str(group.retention),
                group.modules or "(the model)",
                short_op(group.op),
                str(group.tensors),
                gigabytes(group.size_bytes),
            )
            for group in groups
        ],
        left=3,
    )


def _saved_by_op(groups: Iterable[SavedGroup]) -> list[str]:
    return table(
        ("Saved by op", "tensors", "size"),
        [(short_op(group.name), str(group.tensors), gigabytes(group.size_bytes)) for group in groups],
    )


def _ways_out(summary: InfeasibleSummary) -> list[str]:
    if not summary.ways_out:
        return []
    return table(
        ("Ways out: write in the spec", "which", "fits", "smallest peak"),
        [(way.change, way.effect, "yes" if way.fits else "no", gigabytes(way.peak_bytes)) for way in summary.ways_out],
        left=2,
    )


def _notes(notes: Iterable[str]) -> list[str]:
    return [line for note in notes for line in wrapped(f"Note: {note}")]


def short_op(text: str) -> str:
    """Op names without the namespace and overload that tell a reader nothing."""
    words = []
    for word in text.split(" "):
        bare = word.removeprefix("aten.")
        for overload in _OVERLOADS if bare != word else ():
            bare = bare.removesuffix(overload)
        words.append(bare)
    return " ".join(words)
