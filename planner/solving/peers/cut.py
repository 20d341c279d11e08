"""Min-cut with a limit on what crosses from forward to backward, as torch.compile's activation memory budget decides.

Source: `torch/_functorch/partitioners.py` (`choose_saved_values_set`, `solve_min_cut`). Between what forward must give
and what backward needs, the cheapest cut in bytes is saved and everything behind it replayed, op by op. Dear ops
(matrix products, attention) may not be replayed: their results count as given. While the cut is larger than the limit:
first also what is used again far away may be replayed, then a 0/1 knapsack says which dear ops, and at the smallest
limit everything is. The limit is on bytes at the boundary and not on the peak, which need not fall with it:
pytorch#197838.

Left out: the distance to backward in the weights, the bans for long fusible chains, and the choice of what is cheap by
fusibility: here all but the dear ops are cheap.
"""

import heapq
from collections.abc import Set
from dataclasses import dataclass

import networkx as nx

from planner.problem import Problem
from planner.solving.baselines import MATMULS
from planner.solving.peers.knapsack import best_subset
from planner.solving.peers.records import Peer, on_demand, size_of
from planner.units import format_bytes

MIN_CUT = "min-cut"
_FORWARD, _BACKWARD = "forward", "backward"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheapCuts:
    """The two cuts that replay no dear op; every limit is measured against them."""

    near: frozenset[int]  # replays only what is not used again far away
    far: frozenset[int]


def cheap_cuts(problem: Problem) -> CheapCuts:
    """The two cuts of a step that replay no dear op."""
    dear = dear_ops(problem)
    return CheapCuts(near=cheapest_cut(problem, dear | used_far_apart(problem, dear)), far=cheapest_cut(problem, dear))


def min_cut(problem: Problem, cheap: CheapCuts, *, limit_bytes: int) -> Peer:
    """The cut that the scheme settles on when at most this many bytes should cross to backward."""
    return on_demand(
        problem,
        boundary(problem, cheap, limit_bytes),
        rule=MIN_CUT,
        setting=f"keep {format_bytes(limit_bytes)}",
    )


def boundary_range(problem: Problem, cheap: CheapCuts) -> tuple[int, int]:
    """The limits between which the scheme's cuts differ: its budgets 0 and 1."""
    return size_of(problem, problem.must_keep), size_of(problem, cheap.near)


def boundary(problem: Problem, cheap: CheapCuts, limit_bytes: int) -> frozenset[int]:
    """The tensors that cross to backward."""
    room_bytes = limit_bytes - size_of(problem, problem.must_keep)
    if room_bytes <= 0:
        return problem.must_keep
    for saved in (cheap.near, cheap.far):
        if size_of(problem, saved) <= limit_bytes:
            return saved
    dear = sorted(dear_ops(problem))
    sizes = [size_of(problem, problem.ops[op].writes) for op in dear]
    chosen = best_subset(sizes, [problem.ops[op].cost_ns for op in dear], room_bytes)
    return cheapest_cut(problem, {dear[place] for place in chosen})


def dear_ops(problem: Problem) -> frozenset[int]:
    """Positions of the ops that the scheme does not replay unless it must."""
    return frozenset(op.index for op in problem.ops if op.name.rpartition(".")[0] in MATMULS)


def used_far_apart(problem: Problem, dear: Set[int]) -> frozenset[int]:
    """Ops whose result is read again after a dear op that depends on it: replaying it would start a long chain."""
    found = set()
    for tensor in problem.tensors:
        if tensor.producer is None or len(tensor.consumers) < 2:
            continue
        queue = list(tensor.consumers)
        heapq.heapify(queue)
        seen = set(queue)
        while queue:
            op = heapq.heappop(queue)
            if op in dear:
                if max(tensor.consumers) > op:
                    found.add(tensor.producer)
                break
            if op > max(tensor.consumers):
                break  # whatever dear op comes, it comes after the last use
            for reader in (r for t in problem.ops[op].writes for r in problem.tensors[t].consumers):
                if reader not in seen:
                    seen.add(reader)
                    heapq.heappush(queue, reader)
    return frozenset(found)


def cheapest_cut(problem: Problem, banned: Set[int]) -> frozenset[int]:
    """The set of tensors with the fewest bytes from which backward can get all it needs without a banned op.

    Every tensor is an edge as wide as its bytes; what may not be replayed hangs on forward, what backward unpacks hangs
    on backward, and the tensors of a minimum cut are saved. Tensors that must be kept are there in any case.
    """
    network: nx.DiGraph[object] = nx.DiGraph()
    network.add_nodes_from((_FORWARD, _BACKWARD))
    for tensor in problem.tensors:
        if tensor.must_keep:
            continue
        into, out = (tensor.index, "in"), (tensor.index, "out")
        if tensor.may_keep:
            network.add_edge(into, out, capacity=tensor.size_bytes)
        else:
            network.add_edge(into, out)  # without a capacity an edge has no limit
        if tensor.uses:
            network.add_edge(out, _BACKWARD)
        if tensor.producer is None or (tensor.producer in banned and tensor.may_keep):
            network.add_edge(_FORWARD, into)
        else:
            network.add_edges_from(
                ((read, "out"), into)
                for read in problem.ops[tensor.producer].reads
                if not problem.tensors[read].must_keep
            )
    _, (given, _) = nx.minimum_cut(network, _FORWARD, _BACKWARD, flow_func=nx.algorithms.flow.boykov_kolmogorov)
    crossing = {
        tensor.index
        for tensor in problem.tensors
        if (tensor.index, "in") in given and (tensor.index, "out") not in given
    }
    return problem.must_keep | crossing
