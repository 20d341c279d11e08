"""Rules that send tensors to the host: everything that autograd saves, or the inputs of checkpointed blocks.

Source: torchtune's `OffloadActivations` (also in TRL): saved tensors leave on a stream of their own, and forward waits
once five of them have not left. Unsloth's and axolotl's offloaded gradient checkpointing: every block is checkpointed,
and its input leaves. Here backward fetches ahead, which not all of them do; other limits on what waits are tried too.

Left out: that copies take memory bandwidth from the computation beside them, and the pinned memory's own rounding.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence, Set
from dataclasses import replace

import numpy as np

from planner.costs.link import LinkTimeline, Transfer, link_timeline
from planner.costs.roofline import op_seconds
from planner.device import DeviceProfile
from planner.graph import OUTSIDE, OpGraph, ops, saved_tensors, values
from planner.problem import Problem
from planner.simulation.liveness import Schedule, Timeline, demand_schedule, region_schedule, simulate
from planner.solving.baselines import block_regions, region_inputs
from planner.solving.peers.records import Peer, chosen_blocks, with_unreplayable

OFFLOAD_ALL = "offload all"
OFFLOAD_INPUTS = "offload block inputs"
# How many of the largest tensor may wait to leave, and be back ahead of need.
USUAL_STAGING = 5
STAGINGS = (1, 2, USUAL_STAGING, 16, None)
_NS_PER_S = 1_000_000_000
# Smaller tensors stay: torchtune's limit.
_SMALLEST_BYTES = 1024


def offload_all(
    problem: Problem, graph: OpGraph, device: DeviceProfile, *, staging: int | None = USUAL_STAGING
) -> Peer | None:
    """Everything saved within the model's forward on the host, nothing replayed; None if nothing is large enough.

    Args:
        problem: the step.
        graph: the graph it was built from.
        device: for the rate of its host link and the time of each op.
        staging: how many of the largest tensor may wait to leave or be back early; None for any number.
    """
    kept = frozenset(tensor.index for tensor in problem.tensors if tensor.uses)
    moved = _movable(problem, graph, kept)
    return _offloaded(
        problem, graph, device, kept, moved, demand_schedule(problem, kept), rule=OFFLOAD_ALL, staging=staging
    )


def offload_block_inputs(
    problem: Problem, graph: OpGraph, device: DeviceProfile, *, staging: int | None = USUAL_STAGING
) -> Peer | None:
    """Every block checkpointed and what it starts from on the host; None without blocks. Arguments as above."""
    blocks = chosen_blocks(problem, graph)
    if not blocks:
        return None
    region_of = block_regions(problem, blocks, 1)
    kept = with_unreplayable(problem, region_inputs(problem, region_of))
    entering = {read for op in problem.ops if region_of(op.index) is not None for read in op.reads} & kept
    schedule = region_schedule(problem, kept, region_of)
    moved = _movable(problem, graph, entering)
    return _offloaded(problem, graph, device, kept, moved, schedule, rule=OFFLOAD_INPUTS, staging=staging)


def step_times_ns(graph: OpGraph, device: DeviceProfile, problem: Problem, schedule: Schedule) -> list[int]:
    """The time of each step of forward and backward, with the replays before an unpack counted to its step."""
    times = [0] * len(problem.base_bytes)
    for op in ops(graph):
        times[op.step] = round(op_seconds(op, device) * _NS_PER_S)
    for step, replayed in schedule.items():
        times[step] += sum(problem.ops[op].cost_ns for op in replayed)
    return times


def transfers_of(problem: Problem, graph: OpGraph, moved: Sequence[int], schedule: Schedule) -> tuple[Transfer, ...]:
    """What each moved tensor asks of the link: ready when made, needed when first unpacked or read by a replay."""
    need = {index: problem.tensors[index].first_unpack for index in moved if problem.tensors[index].uses}
    for step in sorted(schedule, reverse=True):
        for read in (read for op in schedule[step] for read in problem.ops[op].reads):
            need[read] = min(need.get(read, step), step)
    table = values(graph)
    return tuple(
        Transfer(
            size_bytes=problem.tensors[index].size_bytes,
            ready_step=table[problem.tensors[index].value].producer or 0,
            need_step=need.get(index),
        )
        for index in moved
    )


def with_absences(problem: Problem, timeline: Timeline, moved: Sequence[int], link: LinkTimeline) -> Timeline:
    """The memory timeline when each moved tensor is away from the end of its copy out to the start of its copy back.

    A tensor that forward itself still uses stays that long, and one that would be fetched before it is gone stays.
    """
    starts = link.step_start_ns
    change = np.zeros(len(problem.base_bytes) + 1, dtype=np.int64)
    for place, index in enumerate(moved):
        tensor = problem.tensors[index]
        gone = max(bisect_left(starts, link.out_finish_ns[place]), tensor.free_step)
        back_ns = link.back_start_ns[place]
        back = len(problem.base_bytes) if back_ns is None else bisect_right(starts, back_ns) - 1
        if gone < back:
            change[gone] -= tensor.size_bytes
            change[back] += tensor.size_bytes
    away = np.cumsum(change)
    steps = np.fromiter((point.step for point in timeline.points), dtype=np.int64, count=len(timeline.points))
    live = np.asarray(timeline.live_bytes, dtype=np.int64) + away[steps]
    highest = int(np.argmax(live))
    in_optimizer = problem.optimizer_peak_bytes > live[highest]
    return replace(
        timeline,
        live_bytes=tuple(int(size) for size in live),
        peak_bytes=max(int(live[highest]), problem.optimizer_peak_bytes),
        peak=None if in_optimizer else timeline.points[highest],
    )


def _movable(problem: Problem, graph: OpGraph, tensors: Iterable[int]) -> tuple[int, ...]:
    """Those that a saved-tensor hook or a checkpoint sees, and that are worth a copy."""
    outside = {saved.value for saved in saved_tensors(graph) if saved.module_fqn == OUTSIDE}
    return tuple(
        index
        for index in sorted(tensors)
        if problem.tensors[index].may_keep
        and problem.tensors[index].value not in outside
        and problem.tensors[index].size_bytes >= _SMALLEST_BYTES
    )


def _offloaded(
    problem: Problem,
    graph: OpGraph,
    device: DeviceProfile,
    kept: Set[int],
    moved: Sequence[int],
    schedule: Schedule,
    *,
    rule: str,
    staging: int | None,
) -> Peer | None:
    transfers = transfers_of(problem, graph, moved, schedule)
    wanted = [place for place, transfer in enumerate(transfers) if transfer.need_step is not None]
    if not wanted:
        return None
    moved, transfers = [moved[place] for place in wanted], tuple(transfers[place] for place in wanted)
    limit = None if staging is None else staging * max(transfer.size_bytes for transfer in transfers)
    link = link_timeline(
        step_times_ns(graph, device, problem, schedule),
        transfers,
        bytes_per_s=device.host_link_bytes_per_s,
        backward_step=problem.backward_step,
        waiting_bytes=limit,
        ahead_bytes=limit,
    )
    return Peer(
        rule=rule,
        setting="no limit on what waits" if staging is None else f"{staging} may wait",
        kept=frozenset(kept),
        offloaded=frozenset(moved),
        timeline=with_absences(problem, simulate(problem, kept, schedule), moved, link),
        stall_ns=link.stall_ns,
    )
