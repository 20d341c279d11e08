"""`verify`: real steps without and with a plan, side by side."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median

import torch

from planner.device import load_device
from planner.errors import ReplayError, SpecError
from planner.plan import Plan, Retention
from planner.planning import check_plan, solve_graph
from planner.runtime.handle import AppliedPlan, apply
from planner.runtime.live import LiveRun, make_live
from planner.runtime.measure import Memory, measure_peak, seconds
from planner.runtime.rehearsal import rehearse
from planner.solving.search import Limits
from planner.spec import ModelKind, ParallelSpec, PrecisionSpec, RunSpec
from planner.tracing import Kernels, located_in, prepare_spec, trace_spec, trace_step

# A prediction that is further off than this does not pass.
TOLERANCE = 0.02
# Forwards compared bit by bit: those that record the tape, and the first that run from it.
_COMPARED_FORWARDS = 4
# Steps after which the runtime must have stopped recording.
_MAX_WARM_UP_STEPS = 8
_LAYER_KEYS = ("num_hidden_layers", "n_layer", "num_layers", "encoder_layers")
_SEED = 0
_LOSS = "the loss"  # among the names of gradients
_UNBOUNDED_BYTES = 2**62  # a budget that everything fits

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What was predicted and what was measured. Times are medians; `notes` say what differs from the plan's own run."""

    device: str
    budget_bytes: int
    predicted_peak_bytes: int
    measured_peak_bytes: int
    measured_reserved_bytes: int
    predicted_host_bytes: int
    measured_host_bytes: int
    baseline_peak_bytes: int
    loss_equal: bool
    gradients_equal: bool
    first_difference: str
    step_s: float
    baseline_step_s: float
    fallbacks: int
    notes: tuple[str, ...]

    @property
    def prediction_error(self) -> float:
        """(measured − predicted) / predicted peak."""
        return (self.measured_peak_bytes - self.predicted_peak_bytes) / self.predicted_peak_bytes

    @property
    def failures(self) -> tuple[str, ...]:
        """What does not hold, in words; empty when everything does."""
        found = []
        if not self.loss_equal:
            found.append("the loss differs")
        if not self.gradients_equal:
            found.append(f"gradients differ, first in {self.first_difference}")
        if self.measured_peak_bytes > self.budget_bytes:
            found.append("the measured peak is over the budget")
        if abs(self.prediction_error) > TOLERANCE:
            found.append(f"the predicted peak is off by {self.prediction_error:+.1%}")
        if self.measured_host_bytes > self.predicted_host_bytes * (1 + TOLERANCE):
            found.append(
                f"{self.measured_host_bytes:,} bytes go to the host, {self.predicted_host_bytes:,} were predicted"
            )
        if self.fallbacks:
            found.append(f"{self.fallbacks} forwards differed from the recorded one and kept everything")
        return tuple(found)


def verify(
    spec: RunSpec,
    plan: Plan,
    *,
    device: str = "cpu",
    layers: int | None = None,
    steps: int = 5,
    report: Report = lambda _: None,
) -> Verification:
    """Run training steps of the spec's model without and with the plan and compare.

    On CUDA the plan itself runs. A CPU dispatches other operators than those the plan names, so there the model is
    traced again with the CPU's, and a plan is solved for the same budget relative to the baselines' peaks.

    Args:
        spec: the run the plan was made for.
        plan: the plan.
        device: "cpu" or "cuda".
        layers: build the model with this many layers; the plan is then solved again.
        steps: timed steps of each kind, taken in turns.
        report: called with lines of progress.

    Raises:
        PlanMismatchError: the plan is for another model than the spec's.
        SpecError: the spec cannot be run on this device.
    """
    place = torch.device(device)
    if place.type == "cuda" and not torch.cuda.is_available():
        raise SpecError("there is no CUDA device here", path=spec.path, key=None, hint="use --device cpu")
    check_plan(plan, trace_spec(spec), path=spec.path)
    notes: list[str] = []
    run_spec = _runnable(spec, layers, notes)
    if place.type == "cpu" or layers is not None or run_spec != spec:
        plan = _solved_again(run_spec, plan, place, notes, report)
    live = make_live(run_spec, place, seed=_SEED)
    report(f"running {plan.model.name} on {device}")
    if place.type == "cpu":
        notes.append("oneDNN is off: PyTorch's own kernels run, whose workspaces are counted in the prediction")
    return compare(live, plan, place, steps=steps, notes=tuple(notes), report=report)


def _runnable(spec: RunSpec, layers: int | None, notes: list[str]) -> RunSpec:
    """The spec as one process can run it: alone, in the dtype it computes in, with fewer layers if asked."""
    is_parallel = max(spec.parallel.fsdp, spec.parallel.ddp) > 1
    if is_parallel or spec.precision.parameters != spec.precision.compute:
        notes.append(f"runs in one process, parameters in {spec.precision.compute}, unsharded")
        spec = replace(
            spec,
            parallel=ParallelSpec(fsdp=1),
            precision=PrecisionSpec(parameters=spec.precision.compute, compute=spec.precision.compute),
        )
    if layers is None:
        return spec
    keys = [key for key in _LAYER_KEYS if key in spec.model.config]
    if spec.model.kind is not ModelKind.TRANSFORMERS or not keys:
        raise SpecError(
            "the number of layers cannot be set",
            path=spec.path,
            key="model",
            hint=f"leave out --layers; it needs one of {', '.join(_LAYER_KEYS)} in model.config",
        )
    notes.append(f"{layers} layers instead of {spec.model.config[keys[0]]}")
    return replace(spec, model=replace(spec.model, config={**spec.model.config, keys[0]: layers}))


def _solved_again(spec: RunSpec, plan: Plan, place: torch.device, notes: list[str], report: Report) -> Plan:
    """A plan for the step as it runs here, at the budget that lies as far between the baselines' peaks.

    It may offload as much as the plan does.
    """
    kernels = Kernels.CPU if place.type == "cpu" else Kernels.CUDA
    step = prepare_spec(spec, kernels=kernels)
    with located_in(spec):
        graph = trace_step(step)
    profile = load_device(spec.device, directory=Path(spec.path).parent)
    lowest, highest = _span(plan)
    place_between = (plan.budget_bytes - lowest) / max(1, highest - lowest)
    share = min(1.0, max(0.0, place_between))
    solved = partial(solve_graph, graph, host_budget=plan.predicted.host_bytes, device=profile, limits=Limits())
    everything = solved(budget=_UNBOUNDED_BYTES).plan
    here_lowest, here_highest = _span(everything)
    budget = here_lowest + round(share * (here_highest - here_lowest))
    if place_between < 0:
        which = "for the lowest baseline's peak, since the plan's budget is below it"
    else:
        which = (
            f"at the same relative budget: {share:.0%} of the way from the lowest baseline's peak to no checkpointing"
        )
    notes.append(f"solved again for this run's own operators, {which}")
    report(f"solving for {budget / 1e9:.3f} GB")
    found = solved(budget=budget, rehearse=partial(rehearse, step), report=report).plan
    if plan.count(Retention.OFFLOAD) and not found.count(Retention.OFFLOAD):
        notes.append("the plan offloads, and the one solved for here does not: offloading was not tried")
    return found


def _span(plan: Plan) -> tuple[int, int]:
    """Lowest and highest peak among the baselines."""
    peaks = [row.peak_bytes for row in plan.baselines]
    return min(peaks), max(peaks)


def compare(
    live: LiveRun,
    plan: Plan,
    place: torch.device,
    *,
    steps: int,
    notes: tuple[str, ...] = (),
    report: Report = lambda _: None,
) -> Verification:
    """Run steps of a live model without and with a plan that was made for the kernels of this device.

    Args:
        live: the model with its inputs and optimizer.
        plan: the plan, for this very step.
        place: where the model is; on a CPU oneDNN is switched off meanwhile.
        steps: timed steps of each kind.
        notes: what differs from the run that the plan was made for.
        report: called with lines of progress.
    """
    with torch.backends.mkldnn.flags(enabled=place.type != "cpu"):
        return _compared(live, plan, place, steps=steps, notes=notes, report=report)


def _compared(
    live: LiveRun, plan: Plan, place: torch.device, *, steps: int, notes: tuple[str, ...], report: Report
) -> Verification:
    report(f"comparing loss and gradients of {1 + 2 * _COMPARED_FORWARDS} steps")
    loss, gradients = _gradients(live)
    buffers = [buffer.clone() for buffer in live.module.buffers()]
    unsteady = _unsteady(live, loss, gradients)
    if unsteady:
        notes = (*notes, _unsteady_note(unsteady))
    applied = apply(live.module, plan)
    try:
        differences: list[str] = []
        losses_equal = True
        for _ in range(_COMPARED_FORWARDS):
            for buffer, before in zip(live.module.buffers(), buffers, strict=True):
                buffer.copy_(before)
            planned_loss, planned = _gradients(live)
            losses_equal &= _LOSS in unsteady or torch.equal(loss, planned_loss)
            differences += [
                name for name in gradients if name not in unsteady and not torch.equal(gradients[name], planned[name])
            ]
            del planned
        fallbacks = applied.fallbacks
    finally:
        applied.remove()
    del gradients
    report("measuring memory without and with the plan")
    baseline_memory = _peak(live, place)
    applied = apply(live.module, plan)
    try:
        _settle(live, applied)
        planned_memory = _peak(live, place)
        host_bytes = applied.host.peak_bytes
        fallbacks += applied.fallbacks
    finally:
        applied.remove()
    step_s, baseline_step_s = _times(live, plan, place, steps, report)
    return Verification(
        device=str(place),
        budget_bytes=plan.budget_bytes,
        predicted_peak_bytes=plan.predicted.peak_bytes,
        measured_peak_bytes=planned_memory.peak_bytes,
        measured_reserved_bytes=planned_memory.reserved_bytes,
        predicted_host_bytes=plan.predicted.host_bytes,
        measured_host_bytes=host_bytes,
        baseline_peak_bytes=baseline_memory.peak_bytes,
        loss_equal=losses_equal,
        gradients_equal=not differences,
        first_difference=differences[0] if differences else "",
        step_s=step_s,
        baseline_step_s=baseline_step_s,
        fallbacks=fallbacks,
        notes=notes,
    )


def _unsteady(live: LiveRun, loss: torch.Tensor, gradients: Mapping[str, torch.Tensor]) -> list[str]:
    """Which gradients are not the same bits from run to run although nothing was applied; and whether the loss is.

    Some kernels add up in whatever order their threads come: `index_put_` with accumulation, which a table of positions
    read by an index comes down to, is one.
    """
    found: dict[str, None] = {}
    for _ in range(_COMPARED_FORWARDS):
        again_loss, again = _gradients(live)
        if not torch.equal(loss, again_loss):
            found[_LOSS] = None
        found |= dict.fromkeys(name for name in gradients if not torch.equal(gradients[name], again[name]))
    return list(found)


def _unsteady_note(names: list[str]) -> str:
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"not the same from run to run without a plan either, and so not compared: {names[0]}{more}"


def _settle(live: LiveRun, applied: AppliedPlan) -> None:
    """Step until a forward runs from the tape instead of being recorded."""
    for _ in range(_MAX_WARM_UP_STEPS):
        before = applied.recordings
        live.step()
        if applied.recordings == before:
            return
    raise ReplayError(f"after {_MAX_WARM_UP_STEPS} steps every forward still differs from the one before")


def _gradients(live: LiveRun) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Loss and gradients of one step from the same seed; the model's gradients are cleared."""
    torch.manual_seed(_SEED)
    loss = live.forward_backward().clone()
    found = {name: parameter.grad for name, parameter in live.module.named_parameters() if parameter.grad is not None}
    live.module.zero_grad(set_to_none=True)
    return loss, found


def _peak(live: LiveRun, place: torch.device) -> Memory:
    """Peak of a step once optimizer state exists."""
    live.step()
    return measure_peak(live.step, resident=live.resident(), device=place)


def _times(live: LiveRun, plan: Plan, place: torch.device, steps: int, report: Report) -> tuple[float, float]:
    """Median seconds of a step with and without the plan, taken in turns so that drift hits both."""
    planned, plain = [], []
    applied = apply(live.module, plan)
    try:
        _settle(live, applied)
        for number in range(1, steps + 1):
            report(f"timing step {number} of {steps}")
            planned.append(seconds(live.step, place))
            with applied.paused():
                plain.append(seconds(live.step, place))
    finally:
        applied.remove()
    return median(planned), median(plain)
