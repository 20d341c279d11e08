"""Rehearses a plan: the real runtime carries it out on a step without data, and every byte alive is counted."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from planner.errors import PlanMismatchError, RehearsalError, ReplayError
from planner.graph import op_in_words
from planner.link import Staging
from planner.plan import Plan
from planner.problem import alive_bytes
from planner.runtime.handle import AppliedPlan, apply
from planner.simulation.rehearsal import Rehearsal
from planner.simulation.tracker import StorageTracker
from planner.tracing.accumulation import merge_accumulations
from planner.tracing.steady import assumptions
from planner.tracing.step import Accounts, Step, StepRunner, accounts, explained

# A signature is always recorded so often before a forward can run from its tape.
_RECORDED_FORWARDS = 2
# A model that is still recorded then, is recorded in each of its forwards: that is what is rehearsed.
_MAX_FORWARDS = 8
# The machine that rehearses is not the one that trains.
_NO_LIMIT = sys.maxsize


def rehearse(step: Step, plan: Plan, *, staging: Staging | None = None) -> Rehearsal:
    """The peak of the step under the plan, once forwards run from the tape, as they do in training.

    What is counted beside the storages that the runtime keeps alive is what a trace of the step counts, by the same
    code: static memory, gradients as FSDP reduces them, accumulation in place, and the optimizer step.

    Args:
        step: the one that the plan's graph was traced from; the plan is put on its module and taken off again.
        plan: the plan; what it offloads takes no memory here, however much it is.
        staging: as for `apply`.

    Raises:
        RehearsalError: the runtime cannot carry the plan out: the plan is for another step, the step differs from run
            to run, or its module is of a kind on which no plan works.
        TraceError: the model's code failed on tensors without data.
    """
    started = time.perf_counter()
    try:
        with _applied(step.module, plan, staging) as applied:
            tracker = _tracked(step, applied)
            memory = accounts(tracker, step.module, step.settings)
    except (PlanMismatchError, ReplayError) as error:
        raise RehearsalError(f"the plan cannot be carried out on the step it was made for: {error}") from error
    return _rehearsal(tracker, memory, applied, wall_s=time.perf_counter() - started)


@contextmanager
def _applied(module: torch.nn.Module, plan: Plan, staging: Staging | None) -> Iterator[AppliedPlan]:
    """While active, the plan is on the module; gradients are cleared before and after."""
    module.zero_grad(set_to_none=True)
    applied = apply(module, plan, host_limit_bytes=_NO_LIMIT, staging=staging)
    applied.is_watched = True
    try:
        yield applied
    finally:
        applied.remove()
        module.zero_grad(set_to_none=True)


def _tracked(step: Step, applied: AppliedPlan) -> StorageTracker:
    """The recording of the first forward that is not recorded by the runtime, and of its backward."""
    runner = StepRunner(step)
    with assumptions(), torch.enable_grad():
        for _ in range(_RECORDED_FORWARDS):
            with explained():
                runner.forward()
        while True:
            tracker = StorageTracker(step.module, step.named_inputs, kernels=step.settings.kernels)
            recordings = applied.recordings
            with explained(tracker), tracker.watching():
                output, scalar = runner.forward()
                is_settled = applied.recordings == recordings or applied.forwards >= _MAX_FORWARDS
                if is_settled:
                    tracker.begin_backward()
                    scalar.backward()  # type: ignore[no-untyped-call]
                    tracker.finish(step.module)
            del output, scalar
            if is_settled:
                merge_accumulations(tracker)
                return tracker


def _rehearsal(tracker: StorageTracker, memory: Accounts, applied: AppliedPlan, *, wall_s: float) -> Rehearsal:
    live_bytes = alive_bytes(
        memory.storages,
        tracker.ops,
        static=memory.static,
        sharded_gradient_ratio=memory.sharded_gradient_ratio,
        steps=tracker.step,
    )
    highest_bytes, optimizer_bytes = max(live_bytes), memory.static.optimizer_peak_bytes
    is_in_optimizer = optimizer_bytes > highest_bytes
    return Rehearsal(
        peak_bytes=max(highest_bytes, optimizer_bytes),
        peak_at="optimizer step" if is_in_optimizer else _place(tracker, live_bytes.index(highest_bytes)),
        # The runtime has views of its own in forward.
        live_bytes=tuple(size for op, size in zip(tracker.ops, live_bytes, strict=True) if not op.is_view),
        replays=len(tracker.replayed),
        fallbacks=applied.fallbacks,
        wall_s=wall_s,
        host_bytes=applied.host.peak_bytes,
    )


def _place(tracker: StorageTracker, step: int) -> str:
    """Where a step of the recording is, for a person. Of a replay it says which module's backward asked for it."""
    op = tracker.ops[step]
    if step in tracker.replayed:
        return f"{op.phase}, replaying {op.name} for {op.module_fqn or 'the model'}"
    return f"{op.phase}, {op_in_words(op)}"
