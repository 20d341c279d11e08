"""What the hook runtime costs beside plain PyTorch and beside torch.utils.checkpoint, on this machine.

    python benchmarks/runtime_overhead.py [--rounds 15] [--json]

One model (GPT-2 of 12 layers, width 512, no dropout), four variants in one interleaved run, so that drift of the
machine hits all alike: no plan, a plan that saves everything, torch.utils.checkpoint per block, and a plan that keeps
only block inputs. Prints medians, quartiles and allocator peaks; ratios are taken round by round.
"""

import argparse
import json
import statistics
from collections.abc import Callable
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
from planner.runtime.measure import measure_peak, seconds
from planner.simulation.liveness import simulate
from planner.solving.baselines import baselines, region_inputs
from planner.solving.search import Solution, Status, saved, without_idle_anchors
from planner.tracing import Kernels, trace_module

LAYERS, WIDTH, HEADS, VOCABULARY, LENGTH, BATCH = 12, 512, 8, 2048, 256, 4
CPU = torch.device("cpu")


def model() -> Any:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_layer=LAYERS, n_embd=WIDTH, n_head=HEADS, vocab_size=VOCABULARY, n_positions=LENGTH,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config).train()


def plans(module: Any, batch: dict[str, torch.Tensor]) -> dict[str, Plan]:
    graph = trace_module(module, (), batch, optimizer="none", kernels=Kernels.CPU)
    problem = build_problem(graph, load_device("h100-80gb"))
    block_of = BlockIndex(block_levels(modules(graph))[0])
    homes = [block_of(op.module_fqn) for op in problem.ops]
    kept = {"save everything": saved(problem), "block inputs": region_inputs(problem, lambda op: homes[op])}
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    ids = torch.randint(0, VOCABULARY, (BATCH, LENGTH))
    batch = {"input_ids": ids, "labels": ids}
    made = plans(model(), batch)
    modules_by_name = {"no plan": model(), "torch.utils.checkpoint": model()}
    modules_by_name["torch.utils.checkpoint"].gradient_checkpointing_enable({"use_reentrant": False})
    for name, plan in made.items():
        modules_by_name[name] = model()
        apply(modules_by_name[name], plan)

    def step(module: Any) -> Callable[[], None]:
        def run() -> None:
            module(**batch).loss.backward()
            module.zero_grad(set_to_none=True)

        return run

    runs = {name: step(module) for name, module in modules_by_name.items()}
    for run in runs.values():
        for _ in range(3):
            run()
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(arguments.rounds):
        for name, run in runs.items():
            times[name].append(seconds(run, CPU))
    peaks = {
        name: measure_peak(run, resident=modules_by_name[name].parameters(), device=CPU).peak_bytes
        for name, run in runs.items()
    }
    reference = {"save everything": "no plan", "block inputs": "torch.utils.checkpoint"}
    rows = []
    for name, measured in times.items():
        against = reference.get(name)
        ratios = [a / b for a, b in zip(measured, times[against], strict=True)] if against else []
        rows.append(
            {
                "run": name,
                "median_s": statistics.median(measured),
                "quartiles_s": statistics.quantiles(measured, n=4),
                "peak_bytes": peaks[name],
                "against": against,
                "ratio_median": statistics.median(ratios) if ratios else None,
                "ratio_quartiles": statistics.quantiles(ratios, n=4) if ratios else None,
            }
        )
    if arguments.json:
        print(json.dumps(rows, indent=2))
        return
    for row in rows:
        ratio = ""
        if row["ratio_median"]:
            low, _, high = row["ratio_quartiles"]
            ratio = f"{row['ratio_median']:.3f} × {row['against']} (quartiles {low:.3f} to {high:.3f})"
        print(f"{row['run']:24} {row['median_s'] * 1e3:8.1f} ms {row['peak_bytes'] / 1e6:9.1f} MB  {ratio}")


if __name__ == "__main__":
    main()
