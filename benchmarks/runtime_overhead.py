"""What the hook runtime costs beside plain PyTorch and beside torch.utils.checkpoint, on this machine.

    python benchmarks/runtime_overhead.py [--rounds 25] [--tiny-rounds 200] [--wall] [--json]

GPT-2 of 12 layers without dropout in five variants: no plan, a plan that saves everything, one that saves everything
but one tensor (so that every saved tensor passes through the hooks), torch.utils.checkpoint per block, and a plan that
keeps only block inputs. Two sizes: width 512, and width 16 on four tokens, where a step is little but Python and
dispatch: it shows what the first drowns in the noise of the machine. Both take the processor time of one thread, which
what else the machine does disturbs least; with --wall, the first takes the wall clock and all threads.

Each round runs every variant once, in an order of its own, so that drift hits all alike. Ratios are taken round by
round; printed are their median with its 95% confidence interval (from order statistics, whatever the distribution) and
their quartiles. Medians of times, and allocator peaks, stand beside them.
"""

import argparse
import gc
import json
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
import transformers

from planner.blocks import BlockIndex, block_levels
from planner.device import load_device
from planner.graph import modules
from planner.plan import Plan
from planner.planning import make_plan
from planner.problem import build_problem
from planner.runtime.handle import apply
from planner.runtime.measure import measure_peak
from planner.simulation.liveness import simulate
from planner.solving.baselines import baselines, region_inputs
from planner.solving.search import Solution, Status, saved, without_idle_anchors
from planner.tracing import Kernels, trace_module

CPU = torch.device("cpu")
LAYERS = 12
WARM_UP = 3
NO_PLAN, CHECKPOINT = "no plan", "torch.utils.checkpoint"
SAVE_ALL, SAVE_NEARLY_ALL, BLOCK_INPUTS = "save everything", "save all but one", "block inputs"
REFERENCES = {
    SAVE_ALL: (NO_PLAN,),
    SAVE_NEARLY_ALL: (NO_PLAN,),
    BLOCK_INPUTS: (CHECKPOINT, NO_PLAN),
    CHECKPOINT: (NO_PLAN,),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """A model, its batch, and how a step is timed."""

    name: str
    width: int
    heads: int
    vocabulary: int
    length: int
    batch: int
    threads: int
    clock: Callable[[], float]


LARGE = Size(
    name="width 512, processor time of one thread",
    width=512,
    heads=8,
    vocabulary=2048,
    length=256,
    batch=4,
    threads=1,
    clock=time.process_time,
)
TINY = Size(
    name="width 16, processor time of one thread",
    width=16,
    heads=2,
    vocabulary=32,
    length=4,
    batch=1,
    threads=1,
    clock=time.process_time,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """How many times the reference's time a step takes, in rounds of both."""

    against: str
    median: float
    interval: tuple[float, float]
    quartiles: tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What was measured of one variant."""

    size: str
    run: str
    median_s: float
    peak_bytes: int
    ratios: tuple[Ratio, ...]


def model(size: Size) -> Any:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_layer=LAYERS, n_embd=size.width, n_head=size.heads, vocab_size=size.vocabulary, n_positions=size.length,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False, bos_token_id=0, eos_token_id=0,
        loss_type="ForCausalLM",
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config).train()


def plans(module: Any, batch: dict[str, torch.Tensor]) -> dict[str, Plan]:
    graph = trace_module(module, (), batch, optimizer="none", kernels=Kernels.CPU)
    problem = build_problem(graph, load_device("h100-80gb"))
    block_of = BlockIndex(block_levels(modules(graph))[0])
    homes = [block_of(op.module_fqn) for op in problem.ops]
    everything = saved(problem)
    dropped = next(tensor.index for tensor in problem.choices if tensor.index in everything)
    kept = {
        SAVE_ALL: everything,
        SAVE_NEARLY_ALL: everything - {dropped},
        BLOCK_INPUTS: region_inputs(problem, lambda op: homes[op]),
    }
    found = {}
    for name, tensors in kept.items():
        chosen = without_idle_anchors(problem, tensors)
        solution = Solution(
            status=Status.FEASIBLE,
            kept=chosen,
            timeline=simulate(problem, chosen),
            bound_ns=0,
            gap=1.0,
            wall_s=0.0,
        )
        found[name] = make_plan(graph, problem, solution, baselines(problem, graph), budget_bytes=2**60, device="cpu")
    return found


def variants(size: Size, batch: dict[str, torch.Tensor]) -> dict[str, Any]:
    found = {NO_PLAN: model(size), CHECKPOINT: model(size)}
    found[CHECKPOINT].gradient_checkpointing_enable({"use_reentrant": False})
    for name, plan in plans(model(size), batch).items():
        found[name] = model(size)
        apply(found[name], plan)
    return found


def step(module: Any, batch: dict[str, torch.Tensor]) -> Callable[[], None]:
    def run() -> None:
        module(**batch).loss.backward()
        module.zero_grad(set_to_none=True)

    return run


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def measure(size: Size, rounds: int) -> list[Row]:
    torch.manual_seed(1)
    ids = torch.randint(0, size.vocabulary, (size.batch, size.length))
    batch = {"input_ids": ids, "labels": ids}
    with threads(size.threads):
        named = variants(size, batch)
        runs = {name: step(module, batch) for name, module in named.items()}
        times = interleaved(runs, rounds, size.clock)
        peaks = {
            name: measure_peak(run, resident=named[name].parameters(), device=CPU).peak_bytes
            for name, run in runs.items()
        }
    return [
        Row(
            size=size.name,
            run=name,
            median_s=statistics.median(measured),
            peak_bytes=peaks[name],
            ratios=tuple(ratio_to(other, measured, times[other]) for other in REFERENCES.get(name, ())),
        )
        for name, measured in times.items()
    ]


def interleaved(runs: dict[str, Callable[[], None]], rounds: int, clock: Callable[[], float]) -> dict[str, list[float]]:
    """The times of each run, in rounds of all of them."""
    for run in runs.values():
        for _ in range(WARM_UP):
            run()
    gc.collect()
    order, chance = list(runs), random.Random(0)
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        chance.shuffle(order)
        for name in order:
            started = clock()
            runs[name]()
            times[name].append(clock() - started)
    return times


def ratio_to(against: str, measured: list[float], reference: list[float]) -> Ratio:
    ratios = sorted(a / b for a, b in zip(measured, reference, strict=True))
    low, middle, high = statistics.quantiles(ratios, n=4)
    # The median lies between these ranks in 95 of 100 such runs: each ratio is above it with probability one half.
    reach = math.ceil(0.98 * math.sqrt(len(ratios)))
    first = max(0, len(ratios) // 2 - reach)
    return Ratio(
        against=against,
        median=middle,
        interval=(ratios[first], ratios[len(ratios) - 1 - first]),
        quartiles=(low, high),
    )


def printed(row: Row) -> str:
    ratios = [
        f"{ratio.median:.3f} × {ratio.against} (95% {ratio.interval[0]:.3f} to {ratio.interval[1]:.3f}, quartiles "
        f"{ratio.quartiles[0]:.3f} to {ratio.quartiles[1]:.3f})"
        for ratio in row.ratios
    ]
    return f"{row.run:24} {row.median_s * 1e3:8.1f} ms {row.peak_bytes / 1e6:9.1f} MB  {'; '.join(ratios)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--tiny-rounds", type=int, default=200)
    parser.add_argument("--wall", action="store_true")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    wall = {"name": "width 512, wall clock", "threads": torch.get_num_threads(), "clock": time.perf_counter}
    large = replace(LARGE, **wall) if arguments.wall else LARGE
    rows = [*measure(TINY, arguments.tiny_rounds), *measure(large, arguments.rounds)]
    if arguments.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
        return
    for place, row in enumerate(rows):
        if not place or rows[place - 1].size != row.size:
            print(f"{row.size}:")
        print(printed(row))


if __name__ == "__main__":
    main()
