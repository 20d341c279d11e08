"""Rules that send tensors to the host: everything that autograd saves, or the inputs of checkpointed blocks.

Source: torchtune's `OffloadActivations` (also in TRL): saved tensors leave on a stream of their own, and forward waits
once five of them have not left. Unsloth's and axolotl's offloaded gradient checkpointing: every block is checkpointed,
and its input leaves. Here backward fetches ahead, which not all of them do; other limits on what waits are tried too.

Left out: that copies take memory bandwidth from the computation beside them, and the pinned memory's own rounding.
"""

from collections.abc import Iterable, Sequence, Set
from dataclasses import replace

from planner.graph import OUTSIDE, OpGraph, saved_tensors, values
from planner.link import Staging
from planner.problem import Pack, Packing, Problem
from planner.simulation.liveness import demand_schedule, region_schedule, simulate
from planner.simulation.transfers import Schedule
from planner.solving.baselines import block_regions, region_inputs
from planner.solving.peers.records import Peer, chosen_blocks, with_unreplayable

OFFLOAD_ALL = "offload all"
OFFLOAD_INPUTS = "offload block inputs"
# How many of the largest tensor may wait to leave, and be back ahead of need.
USUAL_STAGING = 5
STAGINGS = (1, 2, USUAL_STAGING, 16)
# Smaller tensors stay: torchtune's limit.
_SMALLEST_BYTES = 1024


def offload_all(problem: Problem, graph: OpGraph, *, staging: int = USUAL_STAGING) -> Peer | None:
    """Everything saved within the model's forward on the host, nothing replayed; None if nothing is large enough.

    Args:
        problem: the step.
        graph: the graph it was built from.
        staging: how many of the largest tensor may wait to leave, or be back early.
    """
    kept = frozenset(tensor.index for tensor in problem.tensors if tensor.uses)
    moved = _movable(problem, graph, kept)
    return _offloaded(problem, graph, kept, moved, demand_schedule(problem, kept), rule=OFFLOAD_ALL, staging=staging)


def offload_block_inputs(problem: Problem, graph: OpGraph, *, staging: int = USUAL_STAGING) -> Peer | None:
    """Every block checkpointed and what it starts from on the host; None without blocks. Arguments as above."""
    blocks = chosen_blocks(problem, graph)
    if not blocks:
        return None
    region_of = block_regions(problem, blocks, 1)
    kept = with_unreplayable(problem, region_inputs(problem, region_of))
    entering = {read for op in problem.ops if region_of(op.index) is not None for read in op.reads} & kept
    schedule = region_schedule(problem, kept, region_of)
    moved = _movable(problem, graph, entering)
    return _offloaded(problem, graph, kept, moved, schedule, rule=OFFLOAD_INPUTS, staging=staging)


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


def _packed(problem: Problem, graph: OpGraph, moved: Sequence[int]) -> Problem:
    """The problem in which those to move may be: a checkpoint packs its input, which autograd alone may not save.

    Nothing else is packed in it, so that ranks count those to move.
    """
    table = values(graph)
    tensors = list(problem.tensors)
    made = sorted(moved, key=lambda index: (table[tensors[index].value].producer or 0, index))
    packs = []
    for rank, index in enumerate(made):
        step = (table[tensors[index].value].producer or 0) + 1
        tensors[index] = replace(tensors[index], packing=Packing(step=step, first_rank=rank, last_rank=rank))
        packs.append(Pack(step=step, unpack_step=min((unpack for unpack, _ in tensors[index].uses), default=None)))
    return replace(problem, tensors=tuple(tensors), packs=tuple(packs))


def _offloaded(
    problem: Problem,
    graph: OpGraph,
    kept: Set[int],
    moved: Sequence[int],
    schedule: Schedule,
    *,
    rule: str,
    staging: int,
) -> Peer | None:
    read = {index for replays in schedule.values() for op in replays for index in problem.ops[op].reads}
    moved = [index for index in moved if problem.tensors[index].uses or index in read]
    if not moved or problem.link is None:
        return None
    sizes_bytes = [problem.tensors[index].size_bytes for index in moved]
    timeline = simulate(
        _packed(problem, graph, moved),
        kept,
        schedule,
        offloaded=frozenset(moved),
        staging=Staging.of(sizes_bytes, out=staging, back=staging, lead=len(moved)),  # none goes for its age
    )
    if timeline.traffic.host_bytes > problem.link.budget_bytes:
        return None
    return Peer(
        rule=rule,
        setting=f"{staging} may wait",
        kept=frozenset(kept),
        offloaded=frozenset(moved),
        timeline=timeline,
    )
