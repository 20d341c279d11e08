"""Rules that name ops to save, inside checkpointed regions: run by `torch.utils.checkpoint`, so region by region.

Source: torchtitan's selective activation checkpointing ("op": the policy in `activation_checkpoint.py` saves matrix
products and attention, and of the products of a block every second one is recomputed, counted from the second) inside a
checkpoint around every block. Megatron-LM's `--recompute-granularity selective` with the module `core_attn`: "Reducing
Activation Recomputation in Large Transformer Models" (Korthikanti et al. 2022, section 5): everything is saved but what
lies between the query-key product and the attention output, and `tensor_parallel.checkpoint` replays that as a whole.

Left out: collectives on torchtitan's list, that its cache holds products that backward never asks for, and the replay
of random ops with their state: what they return stays saved.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping

from planner.blocks import BlockIndex
from planner.graph import Op, OpGraph, Phase, ops, saved_tensors
from planner.problem import Problem
from planner.simulation.liveness import region_schedule, simulate
from planner.solving.baselines import FUSED_ATTENTION, MATMULS, block_regions, region_inputs
from planner.solving.peers.records import Peer, chosen_blocks, with_unreplayable

SECOND_MATMUL = "torchtitan selective"
CORE_ATTENTION = "Megatron selective"
_SOFTMAX = frozenset({"aten._softmax", "aten._safe_softmax"})
_BATCHED_PRODUCTS = frozenset({"aten.bmm", "aten.baddbmm"})


def every_second_matmul(problem: Problem, graph: OpGraph) -> Peer | None:
    """In every block, the results of attention and of every second matrix product saved; None without blocks."""
    blocks = chosen_blocks(problem, graph)
    if not blocks:
        return None
    block_of = BlockIndex(blocks)
    products: defaultdict[str, int] = defaultdict(int)
    saved_steps: set[int] = set()
    for op in _forward(graph):
        block, name = block_of(op.module_fqn), _bare(op)
        if block is None or name not in MATMULS:
            continue
        if name not in FUSED_ATTENTION:
            products[block] += 1
        if name in FUSED_ATTENTION or products[block] % 2 == 1:
            saved_steps.add(op.step)
    saved = {t for op in problem.ops if op.step in saved_steps for t in op.writes if problem.tensors[t].may_keep}
    region_of = block_regions(problem, blocks, 1)
    return _checkpointed(problem, region_inputs(problem, region_of) | saved, region_of, rule=SECOND_MATMUL)


def core_attention(problem: Problem, graph: OpGraph) -> Peer | None:
    """Everything saved but what attention makes between its products; None where nothing there can be replayed.

    With a fused kernel that is only what the kernel itself saves, such as the sums of its softmax: its output is the
    input of the next product and stays.
    """
    cores = _attention_cores(graph)
    found = {op.index: cores[op.step] for op in problem.ops if op.step in cores}
    if not found:
        return None

    def region_of(op: int) -> str | None:
        return found.get(op)

    kept = region_inputs(problem, region_of) | _saved_elsewhere(problem, graph, found)
    return _checkpointed(problem, kept, region_of, rule=CORE_ATTENTION)


def _saved_elsewhere(problem: Problem, graph: OpGraph, cores: Mapping[int, str]) -> frozenset[int]:
    """Results of a core that a module other than its own saves as well: outside the checkpoint, so they stay."""
    savers: defaultdict[int, set[str]] = defaultdict(set)
    for saved in saved_tensors(graph):
        savers[saved.value].add(saved.module_fqn)
    found = set()
    for op in cores:
        own = {problem.ops[op].module_fqn}
        for index in problem.ops[op].writes:
            tensor = problem.tensors[index]
            if tensor.may_keep and not savers[tensor.value] <= own:
                found.add(index)
    return frozenset(found)


def _attention_cores(graph: OpGraph) -> dict[int, str]:
    """The core that each step of attention belongs to: a fused kernel, or what runs from product to product."""
    calls: defaultdict[tuple[str, int], list[Op]] = defaultdict(list)
    for op in _forward(graph):
        calls[op.module_fqn, op.module_call].append(op)
    cores: dict[int, str] = {}
    for (fqn, call), members in calls.items():
        products = [place for place, op in enumerate(members) if _bare(op) in _BATCHED_PRODUCTS]
        for place, op in enumerate(members):
            name = f"{fqn}:{call}:{op.step}"
            if _bare(op) in FUSED_ATTENTION:
                cores[op.step] = name
            elif _bare(op) in _SOFTMAX:
                before = [product for product in products if product < place]
                after = [product for product in products if product > place]
                if before and after:
                    cores |= {member.step: name for member in members[before[-1] : after[0] + 1]}
    return cores


def _forward(graph: OpGraph) -> list[Op]:
    return [op for op in ops(graph) if op.phase is Phase.FORWARD and not op.is_view]


def _bare(op: Op) -> str:
    return op.name.rpartition(".")[0]


def _checkpointed(problem: Problem, kept: frozenset[int], region_of: Callable[[int], str | None], *, rule: str) -> Peer:
    complete = with_unreplayable(problem, kept)
    schedule = region_schedule(problem, complete, region_of)
    return Peer(rule=rule, setting="", kept=complete, timeline=simulate(problem, complete, schedule))
