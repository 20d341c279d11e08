"""Tracing for commands: with progress, without noise."""

import time
from typing import TYPE_CHECKING

from planner.commands.guards import calm, end, imports, no_exit, on_interrupt
from planner.commands.output import Report

if TYPE_CHECKING:
    from planner.graph import OpGraph
    from planner.spec import RunSpec
    from planner.tracing import Step


def trace_run(run: "RunSpec", *, report: Report, verbose: bool) -> "tuple[Step, OpGraph, float]":
    """The run's step, its op graph and the seconds both took, imports of torch and the model's library included."""
    started = time.perf_counter()
    with imports("tracing a model"), calm(verbose):
        from planner.tracing import located_in, prepare_spec, trace_step
    # The model's library is imported here: an interrupt as an exception can get lost there, as in `imports`.
    with on_interrupt(end), calm(verbose), no_exit(run):
        step = prepare_spec(run)
        with located_in(run):
            graph = trace_step(step)
    trace_s = time.perf_counter() - started
    report(f"traced {len(graph):,} ops in {trace_s:.1f} s")
    return step, graph, trace_s
