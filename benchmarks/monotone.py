"""Does a smaller budget give a smaller peak? For min-cut with a boundary budget, as torch.compile has, and for us.

    python benchmarks/monotone.py [--models llama-3-8b ...] [--points 21] [--time-limit 20] [--host-budget SIZE]
    [--output monotone.json]

The budget of min-cut is a fraction of the bytes between keeping inputs alone and keeping all that the cut of cheap ops
keeps; its plans are simulated like ours. Our budgets are the peaks that min-cut believes it reaches, where a plan
exists, raised to the smallest peak where none does. Exits with 1 if one of our peaks is over its budget or our time
rises with the budget.
"""

import argparse
import json
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # before torch: its profiler prints at each start and stop

import planner
from planner.blocks import block_levels
from planner.device import load_device
from planner.graph import modules
from planner.problem import build_problem
from planner.simulation.liveness import Retained, retained
from planner.solving.baselines import baselines
from planner.solving.decomposition import chain_solver
from planner.solving.peers.cut import boundary_range, cheap_cuts, min_cut
from planner.solving.search import Limits, lowest_peak, solve

HERE = Path(__file__).parent
SPECS = {
    path.stem: path for path in (*sorted((HERE / "models").glob("*.yaml")), HERE.parent / "examples" / "unet.yaml")
}


def rows(name: str, points: int, limits: Limits, host_budget: str | None) -> list[dict[str, Any]]:
    spec = planner.load(SPECS[name])
    graph = planner.trace(spec)
    device = load_device(spec.device, directory=SPECS[name].parent)
    problem = build_problem(graph, device, host_budget_bytes=device.host_budget(host_budget))
    known = [retained(problem, baseline.kept) for baseline in baselines(problem, graph)]
    chain = chain_solver(problem, block_levels(modules(graph)))
    lowest = lowest_peak(problem, limits=limits, known=known, chain=chain)
    known.append(Retained(kept=lowest.kept, timeline=lowest.timeline))
    cheap = cheap_cuts(problem)
    smallest, largest = boundary_range(problem, cheap)
    found = []
    for place in range(points):
        fraction = place / (points - 1)
        cut = min_cut(problem, cheap, limit_bytes=smallest + int(fraction * (largest - smallest)))
        assert cut.believed_peak_bytes is not None
        budget_bytes = max(cut.believed_peak_bytes, lowest.timeline.peak_bytes)
        ours = solve(problem, budget_bytes=budget_bytes, limits=limits, known=known, chain=chain)
        assert ours.timeline is not None
        assert ours.kept is not None
        known.append(Retained(kept=ours.kept, timeline=ours.timeline))  # what fits a budget fits a larger one
        found.append(
            {
                "model": name,
                "fraction": fraction,
                "cut_believed_peak_bytes": cut.believed_peak_bytes,
                "cut_peak_bytes": cut.timeline.peak_bytes,
                "cut_overhead": cut.timeline.recompute_ns / problem.step_ns,
                "budget_bytes": budget_bytes,
                "peak_bytes": ours.timeline.peak_bytes,
                "overhead": ours.timeline.added_ns / problem.step_ns,
            }
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=SPECS, default=["llama-3-8b"], metavar="MODEL")
    parser.add_argument("--points", type=int, default=21)
    parser.add_argument("--time-limit", type=float, default=20.0, metavar="SECONDS")
    parser.add_argument(
        "--host-budget", metavar="SIZE", help="as of `planner solve`; 0 for plans that only save and replay"
    )
    parser.add_argument("--output", type=Path, default=Path("monotone.json"))
    arguments = parser.parse_args()
    found, is_sound = [], True
    for name in arguments.models:
        mine = rows(name, arguments.points, Limits(time_s=arguments.time_limit), arguments.host_budget)
        found += mine
        print(f"{name}\nfraction  min-cut believes   has     overhead    plan: budget    peak   overhead")
        for row in mine:
            believed, cut, budget, ours = (
                f"{row[key] / 1e9:.2f} GB"
                for key in ("cut_believed_peak_bytes", "cut_peak_bytes", "budget_bytes", "peak_bytes")
            )
            print(
                f"{row['fraction']:8.2f} {believed:>14} {cut:>11} {row['cut_overhead']:8.2%} "
                f"{budget:>17} {ours:>9} {row['overhead']:8.2%}"
            )
        rises = sum(later["cut_peak_bytes"] < earlier["cut_peak_bytes"] for earlier, later in pairwise(mine))
        over = sum(row["peak_bytes"] > row["budget_bytes"] for row in mine)
        dearer = sum(later["overhead"] > earlier["overhead"] for earlier, later in pairwise(mine))
        print(
            f"min-cut: a smaller budget peaks higher {rises} of {len(mine) - 1} times; "
            f"plans: over budget {over} times, dearer with more budget {dearer} times\n"
        )
        is_sound = is_sound and not over and not dearer
        arguments.output.write_text(json.dumps(found, indent=2))
    raise SystemExit(not is_sound)


if __name__ == "__main__":
    main()
