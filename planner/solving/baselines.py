"""What people do today, evaluated on the same problem by the same simulation."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import isqrt

from planner.blocks import BlockIndex, block_levels
from planner.graph import OpGraph, modules
from planner.problem import Problem
from planner.simulation.liveness import Timeline, region_schedule, simulate

FUSED_ATTENTION = frozenset(
    {
        "aten._scaled_dot_product_flash_attention",
        "aten._scaled_dot_product_efficient_attention",
        "aten._scaled_dot_product_cudnn_attention",
        "aten._scaled_dot_product_flash_attention_for_cpu",
    }
)
MATMULS = FUSED_ATTENTION | frozenset(
    {
        "aten.mm",
        "aten.addmm",
        "aten.bmm",
        "aten.baddbmm",
        "aten.convolution",
        "aten._grouped_mm",
        "aten._scaled_mm",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """One way of checkpointing: the tensors it holds and what that gives."""

    name: str
    kept: frozenset[int]
    timeline: Timeline


def baselines(problem: Problem, graph: OpGraph) -> tuple[Baseline, ...]:
    """Nothing checkpointed, every block, every √N blocks, selective; the last three where the model has blocks.

    Every block behaves as `torch.utils.checkpoint` does: the whole block runs again at the first unpack in it. Where
    blocks nest (stages of bottlenecks), the depth with the lowest peak stands for each.
    """
    found = [_nothing(problem)]
    levels = block_levels(modules(graph))
    if levels:
        found.append(_lowest(_every(problem, level, 1, "every block") for level in levels))
        found.append(_lowest(_every(problem, level, _root(len(level)), "every √N blocks") for level in levels))
        found.append(_lowest(_selective(problem, level) for level in levels))
    return tuple(found)


def _root(count: int) -> int:
    return max(1, isqrt(count))


def _lowest(candidates: Iterable[Baseline]) -> Baseline:
    return min(candidates, key=lambda b: (b.timeline.peak_bytes, b.timeline.recompute_ns))


def _nothing(problem: Problem) -> Baseline:
    kept = frozenset(t.index for t in problem.tensors if t.uses)
    return Baseline(name="no checkpointing", kept=kept, timeline=simulate(problem, kept))


def _every(problem: Problem, blocks: tuple[str, ...], size: int, name: str) -> Baseline:
    region_of = block_regions(problem, blocks, size)
    kept = region_inputs(problem, region_of)
    return Baseline(name=name, kept=kept, timeline=simulate(problem, kept, region_schedule(problem, kept, region_of)))


def _selective(problem: Problem, blocks: tuple[str, ...]) -> Baseline:
    region_of = block_regions(problem, blocks, 1)
    dear = {
        t
        for op in problem.ops
        if op.name.rpartition(".")[0] in MATMULS
        for t in op.writes
        if problem.tensors[t].may_keep and problem.tensors[t].uses
    }
    kept = region_inputs(problem, region_of) | dear
    return Baseline(
        name="selective", kept=kept, timeline=simulate(problem, kept, region_schedule(problem, kept, region_of))
    )


def block_regions(problem: Problem, blocks: tuple[str, ...], size: int) -> Callable[[int], str | None]:
    """The region of each op: its block, or the group of `size` consecutive blocks it falls in."""
    block_of = BlockIndex(blocks)
    group = {block: blocks[place - place % size] for place, block in enumerate(blocks)}
    found = [block_of(op.module_fqn) for op in problem.ops]
    return lambda op: None if found[op] is None else group[found[op] or ""]


def region_inputs(problem: Problem, region_of: Callable[[int], str | None]) -> frozenset[int]:
    """What checkpointing the regions keeps: their inputs, everything saved outside them, and what must be kept."""
    kept = set(problem.must_keep)
    for tensor in problem.tensors:
        home = None if tensor.producer is None else region_of(tensor.producer)
        enters = any(region_of(op) not in (None, home) for op in tensor.consumers)
        if tensor.may_keep and (enters or (tensor.uses and home is None)):
            kept.add(tensor.index)
    return frozenset(kept)
