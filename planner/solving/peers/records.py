"""What a rule decided and what that gives, and what several rules share."""

from collections.abc import Iterable, Set
from dataclasses import dataclass

from planner.blocks import block_levels
from planner.graph import OpGraph, modules
from planner.problem import Problem, Tensor
from planner.simulation.liveness import Timeline, region_schedule, simulate
from planner.solving.baselines import block_regions, region_inputs


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """One plan of one rule.

    Attributes:
        rule: the rule's name.
        setting: what it was told, for a person; empty for a rule without a setting.
        kept: the tensors held from forward, on the device or on the host.
        offloaded: those of them that go to the host.
        timeline: what the simulation finds, with the offloaded tensors away while they are on the host.
        believed_peak_bytes: the peak by the rule's own account; None for a rule that has none.
        believed_recompute_ns: the replay time by the rule's own account; None for a rule that has none.
    """

    rule: str
    setting: str
    kept: frozenset[int]
    timeline: Timeline
    offloaded: frozenset[int] = frozenset()
    believed_peak_bytes: int | None = None
    believed_recompute_ns: int | None = None

    @property
    def overhead_ns(self) -> int:
        """What the rule's plan adds to the step."""
        return self.timeline.added_ns


def size_of(problem: Problem, tensors: Iterable[int]) -> int:
    """Bytes of the tensors together."""
    return sum(problem.tensors[index].size_bytes for index in tensors)


def saveable(problem: Problem) -> tuple[Tensor, ...]:
    """What the rules choose among: the tensors that autograd saves and that could be replayed instead."""
    return tuple(tensor for tensor in problem.choices if tensor.uses)


def with_unreplayable(problem: Problem, kept: Set[int]) -> frozenset[int]:
    """The kept tensors and those that replays would need and cannot make: every tool holds the results of random ops.

    Which are added depends on what is kept: a replay that ends at a kept tensor looks no further.
    """
    complete = set(kept)
    stack = [tensor.index for tensor in problem.tensors if tensor.uses]
    seen: set[int] = set()
    while stack:
        index = stack.pop()
        if index in complete or index in seen:
            continue
        seen.add(index)
        producer = problem.tensors[index].producer
        if producer is None:
            complete.add(index)
        else:
            stack.extend(problem.ops[producer].reads)
    return frozenset(complete)


def chosen_blocks(problem: Problem, graph: OpGraph) -> tuple[str, ...]:
    """The blocks a user would checkpoint; empty for a model without repetition.

    Where blocks nest, the depth at which checkpointing every block peaks lowest, as for the baselines.
    """
    return min(block_levels(modules(graph)), key=lambda level: _checkpointed_peak(problem, level), default=())


def _checkpointed_peak(problem: Problem, blocks: tuple[str, ...]) -> tuple[int, int]:
    region_of = block_regions(problem, blocks, 1)
    kept = region_inputs(problem, region_of)
    timeline = simulate(problem, kept, region_schedule(problem, kept, region_of))
    return timeline.peak_bytes, timeline.recompute_ns


def additive_peak(problem: Problem, kept: Iterable[int]) -> int:
    """The peak as rules without a timeline see it: the highest that no plan changes, and on top all that is kept."""
    return max(max(problem.base_bytes) + size_of(problem, kept), problem.optimizer_peak_bytes)


def producers_ns(problem: Problem, dropped: Iterable[int]) -> int:
    """The replay time as rules without dependencies see it: the ops that made what is dropped, and none before them."""
    made_by = {problem.tensors[index].producer for index in dropped}
    return sum(problem.ops[op].cost_ns for op in made_by if op is not None)


def on_demand(problem: Problem, kept: Set[int], *, rule: str, setting: str) -> Peer:
    """The plan of a rule that adds up bytes and times, run op by op: what graph-level tools generate."""
    complete = with_unreplayable(problem, kept)
    return Peer(
        rule=rule,
        setting=setting,
        kept=complete,
        timeline=simulate(problem, complete),
        believed_peak_bytes=additive_peak(problem, kept),
        believed_recompute_ns=producers_ns(problem, (t.index for t in saveable(problem) if t.index not in complete)),
    )
