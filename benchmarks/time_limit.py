"""How far past its time limit a search goes, and what it has by then.

    python benchmarks/time_limit.py [--models llama-3-8b ...] [--limits 1 5 10] [--rounds 3]

Searches for a proof (`--gap 0`) at the budget half way between the lowest and the highest peak of the baselines.
"""

import argparse
import os
import time
from pathlib import Path
from statistics import median

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # before torch: its profiler prints at each start and stop

import planner
from planner.solving.search import Limits

MODELS = Path(__file__).parent / "models"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = sorted(path.stem for path in MODELS.glob("*.yaml"))
    parser.add_argument("--models", nargs="+", choices=names, default=["llama-3-8b", "vit-l", "densenet-121"])
    parser.add_argument("--limits", nargs="+", type=float, default=[1.0, 5.0, 10.0], metavar="SECONDS")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    print(f"{'model':<16} limit    over      added     gap")
    for name in arguments.models:
        spec = planner.load(MODELS / f"{name}.yaml")
        graph = planner.trace(spec)
        rows = planner.solve(graph, budget=2**60, device=spec.device).plan.baselines
        budget = (min(row.peak_bytes for row in rows) + max(row.peak_bytes for row in rows)) // 2
        for limit_s in arguments.limits:
            over_s, plans = [], []
            for _ in range(arguments.rounds):
                started = time.monotonic()
                limits = Limits(time_s=limit_s, gap=0.0)
                plans.append(planner.solve(graph, budget=budget, device=spec.device, limits=limits).plan)
                over_s.append(time.monotonic() - started - limit_s)
            assert all(plan.predicted.peak_bytes <= budget for plan in plans)
            added_s, gap = max((plan.predicted.recompute_s + plan.predicted.stall_s, plan.solver.gap) for plan in plans)
            over = max(0.0, median(over_s))
            print(f"{name:<16} {limit_s:3.0f} s {over:5.2f} s {added_s * 1e3:7.2f} ms {gap:7.2%}", flush=True)


if __name__ == "__main__":
    main()
