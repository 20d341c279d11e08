"""Does a larger micro-batch pay for its recomputation? Tokens per second by micro-batch and by way of checkpointing.

    python benchmarks/throughput.py examples/llama-2-7b-throughput.yaml --budget 80GB --batches 16,24,32,48,64
        [--host-budget SIZE] [--device h100-80gb] [--time-limit 60] [--goal 2] [--output throughput.json]

For each micro-batch, the step without checkpointing, with every block checkpointed, and with the solved plan, all from
the same cost model and simulation; a dash stands for what exceeds the budget. Then the micro-batch that
`planner solve --objective throughput` chooses by itself.

The last lines take the first micro-batch that fits without checkpointing as the usual setting, and ask what each larger
one with every block checkpointed gains on it. The cost model knows no fixed cost of a step but launches and the
optimizer. So they also say how long one more fixed cost per step, such as communication that nothing hides, would have
to be for the gain to reach the goal: f with n₂/(t₂ + f) = goal · n₁/(t₁ + f).
"""

import argparse
import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # before torch: its profiler prints at each start and stop

import planner
from planner.device import DeviceProfile, load_device
from planner.errors import InfeasibleError
from planner.graph import step_info
from planner.planning import solve_graph
from planner.reporting.tables import gigabytes, table
from planner.reporting.throughput import throughput_text
from planner.solving.search import Limits
from planner.spec import RunSpec, with_micro_batch
from planner.throughput import best_throughput
from planner.units import parse_bytes

BASELINES = ("no checkpointing", "every block")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One micro-batch under one way of checkpointing."""

    micro_batch: int
    way: str
    tokens: int
    step_s: float
    recompute_s: float
    peak_bytes: int
    fits: bool

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.step_s


def rows_of(
    spec: RunSpec, budget_bytes: int, host_budget: str | None, device: DeviceProfile, limits: Limits
) -> list[Row]:
    """The baselines and the plan; none if no plan fits."""
    graph = planner.trace(spec)
    tokens, size = step_info(graph).tokens, spec.batch.micro_batch
    try:
        plan = solve_graph(graph, budget=budget_bytes, host_budget=host_budget, device=device, limits=limits).plan
    except InfeasibleError:
        return []
    predicted = plan.predicted
    return [
        *(
            Row(
                micro_batch=size,
                way=row.name,
                tokens=tokens,
                step_s=row.step_s,
                recompute_s=row.recompute_s,
                peak_bytes=row.peak_bytes,
                fits=row.fits,
            )
            for row in plan.baselines
            if row.name in BASELINES
        ),
        Row(
            micro_batch=size,
            way="solved plan",
            tokens=tokens,
            step_s=predicted.step_s,
            recompute_s=predicted.recompute_s,
            peak_bytes=predicted.peak_bytes,
            fits=True,
        ),
    ]


def fixed_cost_s(one: Row, other: Row, goal: float) -> float | None:
    """What more each step must take for the other row to have `goal` times the tokens/s; None if no cost does that."""
    grown = other.tokens - goal * one.tokens
    return (goal * one.tokens * other.step_s - other.tokens * one.step_s) / grown if grown > 0 else None


def tables(rows: list[Row], goal: float) -> list[str]:
    by_size: dict[int, dict[str, Row]] = {}
    for row in rows:
        by_size.setdefault(row.micro_batch, {})[row.way] = row
    ways = (*BASELINES, "solved plan")
    lines = table(
        ("micro-batch", *(title for way in ways for title in (way, "peak"))),
        [
            (str(size), *(cell for way in ways for cell in cells(found[way]) if way in found))
            for size, found in sorted(by_size.items())
        ],
    )
    usual = next((found[BASELINES[0]] for _, found in sorted(by_size.items()) if found[BASELINES[0]].fits), None)
    if usual is None:
        return lines
    lines += ["", f"beside {usual.micro_batch} without checkpointing, {usual.tokens_per_s:,.0f} tokens/s:"]
    for size, found in sorted(by_size.items()):
        blocks, plan = found[BASELINES[1]], found["solved plan"]
        if size <= usual.micro_batch or not blocks.fits:
            continue
        fixed_s = fixed_cost_s(usual, blocks, goal)
        wanted = "with no fixed cost"
        if fixed_s is not None:
            wanted = f"with {fixed_s:.2f} s more per step, {fixed_s / usual.step_s:.1f} of the usual steps"
        lines.append(
            f"{size}: every block {blocks.tokens_per_s / usual.tokens_per_s:.2f}×, "
            f"plan {plan.tokens_per_s / usual.tokens_per_s:.2f}×; every block would reach {goal:g}× {wanted}"
        )
    return lines


def cells(row: Row) -> tuple[str, str]:
    return (f"{row.tokens_per_s:,.0f}" if row.fits else "–", gigabytes(row.peak_bytes))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("spec")
    parser.add_argument("--budget", default="80GB")
    parser.add_argument("--batches", type=lambda text: [int(part) for part in text.split(",")], default=[16, 32, 64])
    parser.add_argument("--host-budget", metavar="SIZE", help="as of `planner solve`; 0 for no offloading")
    parser.add_argument("--device")
    parser.add_argument("--time-limit", type=float, default=60.0)
    parser.add_argument("--goal", type=float, default=2.0, help="how many times the tokens per second")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    spec = planner.load(arguments.spec)
    device = load_device(arguments.device or spec.device, directory=Path(arguments.spec).parent)
    budget_bytes = parse_bytes(arguments.budget)
    limits = Limits(time_s=arguments.time_limit)
    rows: list[Row] = []
    for size in arguments.batches:
        print(f"micro-batch {size}", file=sys.stderr, flush=True)
        rows += rows_of(with_micro_batch(spec, size), budget_bytes, arguments.host_budget, device, limits)
    found = best_throughput(
        spec,
        budget=budget_bytes,
        host_budget=arguments.host_budget,
        device=device,
        limits=limits,
        report=lambda line: print(line, file=sys.stderr),
    )
    print("\n".join(tables(rows, arguments.goal)), throughput_text(found), sep="\n\n")
    if arguments.output is not None:
        document: dict[str, Any] = {"rows": [asdict(row) for row in rows]}
        assert found.chosen is not None
        document["chosen"] = {**asdict(found.chosen.attempt), "tokens_per_s": found.chosen.attempt.tokens_per_s}
        arguments.output.write_text(json.dumps(document, indent=2))


if __name__ == "__main__":
    main()
