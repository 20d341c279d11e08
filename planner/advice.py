"""Ways out when no plan fits: changes of the spec, each traced again, with the peak it would reach."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from planner.device import DeviceProfile
from planner.errors import PlannerError, WayOut
from planner.planning import smallest_peak
from planner.spec import AttentionKernel, OptimizerName, RunSpec
from planner.tracing import trace_spec

# How many changes to offer, and how far to double or halve one quantity in search of the first that fits.
WAYS_OUT = 3
_STEPS = 3
_PEAK_TIME_S = 5.0


def ways_out(
    spec: RunSpec,
    *,
    budget_bytes: int,
    host_budget: int | None = None,
    device: DeviceProfile,
    report: Callable[[str], None] = lambda _: None,
) -> tuple[WayOut, ...]:
    """The cheapest changes that this spec has, those that fit first; fewer if it has fewer.

    Args:
        spec: the run that does not fit.
        budget_bytes: what it should fit into.
        host_budget: see `planner.solve`.
        device: for the cost model.
        report: called with a line of progress.
    """
    found = []
    for candidates in (_attention(spec), _optimizer(spec), _micro_batch(spec), _fsdp(spec)):
        best: WayOut | None = None
        for changed, change, effect in candidates:
            report(f"trying {change}")
            try:
                graph = trace_spec(changed)
            except PlannerError:  # not every model runs with every change
                break
            lowest = smallest_peak(
                graph, device, host_budget=host_budget, enough_bytes=budget_bytes, time_s=_PEAK_TIME_S
            )
            peak = lowest.timeline.peak_bytes
            best = WayOut(change=change, effect=effect, peak_bytes=peak, fits=peak <= budget_bytes)
            if best.fits:
                break
        if best is not None:
            found.append(best)
    return tuple(sorted(found, key=lambda way: not way.fits)[:WAYS_OUT])


_Candidates = Iterator[tuple[RunSpec, str, str]]


def _attention(spec: RunSpec) -> _Candidates:
    if spec.attention is AttentionKernel.EAGER:
        changed = replace(spec, attention=AttentionKernel.FLASH)
        yield changed, "attention: flash", "keeps no score matrix"


def _optimizer(spec: RunSpec) -> _Candidates:
    if spec.optimizer.name in (OptimizerName.ADAM, OptimizerName.ADAMW):
        changed = replace(spec, optimizer=replace(spec.optimizer, name=OptimizerName.ADAMW_8BIT))
        yield changed, "optimizer: {name: adamw-8bit}", "holds optimizer state in 8 bits"


def _micro_batch(spec: RunSpec) -> _Candidates:
    size = spec.batch.micro_batch
    if spec.inputs:
        return  # the inputs' shapes say the batch size; which axis it is only the user knows
    for _ in range(_STEPS):
        if size == 1:
            return
        size = -(-size // 2)
        changed = replace(spec, batch=replace(spec.batch, micro_batch=size))
        yield changed, f"batch.micro_batch: {size}", "works on fewer samples at a time; accumulate gradients"


def _fsdp(spec: RunSpec) -> _Candidates:
    degree = spec.parallel.fsdp
    for _ in range(_STEPS):
        degree *= 2
        changed = replace(spec, parallel=replace(spec.parallel, fsdp=degree))
        yield changed, f"parallel.fsdp: {degree}", "shards static memory over more devices"
