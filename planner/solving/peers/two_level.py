"""Two levels: a linear program gives every block a share of the bytes, and a greedy rule fills it inside the block.

Source: PyTorch's `torch/distributed/_tools/sac_ilp.py` with `get_optimal_checkpointing_policy_per_module`, and
torchtitan's graph trainer (pull requests of 2026: an outer linear program over layers, an inner integer program or
greedy rule), which replays op by op within a layer.

Left out: the outer program's limits at every layer. Here it has one, on all that is kept at the end of forward. With
convex shares its optimum is known without a solver: by time per byte, equal shares for what is equal.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

from planner.problem import Problem, Tensor
from planner.solving.baselines import block_regions, region_inputs
from planner.solving.peers.knapsack import density, replay_ns, take_greedily
from planner.solving.peers.records import Peer, additive_peak, on_demand, saveable, size_of
from planner.units import format_bytes

TWO_LEVEL = "two levels"


def two_levels(problem: Problem, blocks: tuple[str, ...], *, limit_bytes: int) -> Peer:
    """Block inputs kept, and of each block what the greedy rule takes of its share.

    Args:
        problem: the step.
        blocks: module paths of the blocks.
        limit_bytes: on the bytes of all kept tensors together.
    """
    region_of = block_regions(problem, blocks, 1)
    start = region_inputs(problem, region_of)
    members: defaultdict[str, list[Tensor]] = defaultdict(list)
    for tensor in saveable(problem):
        home = None if tensor.producer is None else region_of(tensor.producer)
        if home is not None and tensor.index not in start:
            members[home].append(tensor)
    room_bytes = max(0, limit_bytes - size_of(problem, start))
    shares, saved_ns = block_shares(problem, members, room_bytes)
    kept = set(start)
    for block, tensors in members.items():
        kept |= take_greedily(problem, tensors, int(shares[block]))
    found = on_demand(problem, kept, rule=TWO_LEVEL, setting=f"keep {format_bytes(limit_bytes)}")
    # It believes the program's optimum, as it is before anything is rounded to whole tensors.
    shared_bytes = int(sum(shares.values()))
    items = [tensor for tensors in members.values() for tensor in tensors]
    return replace(
        found,
        believed_peak_bytes=max(additive_peak(problem, start) + shared_bytes, problem.optimizer_peak_bytes),
        believed_recompute_ns=round(sum(replay_ns(problem, item) for item in items) - saved_ns),
    )


def block_shares(
    problem: Problem, members: Mapping[str, Sequence[Tensor]], room_bytes: int
) -> tuple[dict[str, Fraction], Fraction]:
    """Bytes for every block that save the most replay time in all, if tensors could be kept in part; and that time.

    Each block's time saved is a concave function of its bytes: its tensors by time per byte. What is equally dear gets
    equal shares.
    """
    by_density: defaultdict[float, list[tuple[str, Tensor]]] = defaultdict(list)
    for block, tensors in members.items():
        for tensor in tensors:
            by_density[density(problem, tensor)].append((block, tensor))
    shares = dict.fromkeys(members, Fraction(0))
    saved_ns, left = Fraction(0), Fraction(room_bytes)
    for dearness in sorted(by_density, reverse=True):
        total = size_of(problem, (tensor.index for _, tensor in by_density[dearness]))
        part = min(Fraction(1), left / total) if total else Fraction(1)
        for block, tensor in by_density[dearness]:
            shares[block] += part * tensor.size_bytes
            saved_ns += part * replay_ns(problem, tensor)
        left -= part * total
    return shares, saved_ns
