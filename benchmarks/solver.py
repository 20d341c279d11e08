"""How good plans are, how fast they are found, and how much slower the best other rule is, for several models.

    python benchmarks/solver.py [--models llama-3-8b unet ...] [--points 8] [--time-limit 60] [--host-budget SIZE]
    [--output solver.json]

For each model, budgets evenly spread strictly between the smallest peak found and that of saving everything. A row has
the plan's overhead (replay and stall time as a share of a step without either), the proven gap, the time of the solver,
and the best peer: of all plans of all rules in `planner.solving.peers`, at every setting tried and at the one each
picks when told the budget, the fastest whose simulated peak fits the same budget, and by how much its step is slower
than ours. Peers that offload are listed apart. Then come the rules that exceed the budget when they are told it and
trust their own account. Each model runs in a process of its own, whose peak memory so far is reported.
"""

import argparse
import json
import multiprocessing
import os
import resource
import statistics
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # before torch: its profiler prints at each start and stop

HERE = Path(__file__).parent
SPECS = {
    path.stem: path for path in (*sorted((HERE / "models").glob("*.yaml")), HERE.parent / "examples" / "unet.yaml")
}
_NS_PER_MS = 1e6


def run_model(name: str, points: int, time_limit_s: float, host_budget: str | None) -> dict[str, Any]:
    import planner
    from planner.blocks import block_levels
    from planner.device import load_device
    from planner.graph import modules
    from planner.problem import build_problem
    from planner.simulation.liveness import retained, simulate
    from planner.solving.baselines import baselines
    from planner.solving.decomposition import chain_solver
    from planner.solving.peers.rules import all_peers, fastest_within, limited_rules, told_budget
    from planner.solving.search import Limits, lowest_peak, saved, solve

    started = time.perf_counter()
    spec = planner.load(SPECS[name])
    graph = planner.trace(spec)
    device = load_device(spec.device, directory=SPECS[name].parent)
    trace_s, traced_bytes = time.perf_counter() - started, _peak_memory_bytes()
    problem = build_problem(graph, device, host_budget_bytes=device.host_budget(host_budget))
    known = [retained(problem, baseline.kept) for baseline in baselines(problem, graph)]
    chain = chain_solver(problem, block_levels(modules(graph)))
    limits = Limits(time_s=time_limit_s)
    started = time.perf_counter()
    lowest = lowest_peak(problem, limits=limits, known=known, chain=chain)
    lowest_s = time.perf_counter() - started
    low_bytes, high_bytes = lowest.timeline.peak_bytes, simulate(problem, saved(problem)).peak_bytes
    budgets = [low_bytes + (high_bytes - low_bytes) * place // (points + 1) for place in range(1, points + 1)]
    solved = []
    for budget_bytes in budgets:  # each from nothing but the baselines, as `planner solve` does
        started = time.perf_counter()
        chain = chain_solver(problem, block_levels(modules(graph)))
        solution = solve(problem, budget_bytes=budget_bytes, limits=limits, known=known, chain=chain)
        solved.append((solution, time.perf_counter() - started, _peak_memory_bytes()))
        print(f"  {name}: {budget_bytes / 1e9:.2f} GB in {solved[-1][1]:.1f} s", file=sys.stderr, flush=True)

    rules = limited_rules(problem, graph)
    peers = all_peers(problem, graph, rules)
    rows = []
    for budget_bytes, (solution, solve_s, memory_bytes) in zip(budgets, solved, strict=True):
        told = told_budget(problem, rules, budget_bytes)
        fitting = fastest_within((*peers, *told), budget_bytes)
        ours_ns = None if solution.timeline is None else solution.timeline.added_ns
        rows.append(
            {
                "budget_bytes": budget_bytes,
                "status": str(solution.status),
                "peak_bytes": None if solution.timeline is None else solution.timeline.peak_bytes,
                "overhead": None if ours_ns is None else ours_ns / problem.step_ns,
                "gap": solution.gap,
                "gap_of_step": None if ours_ns is None else (ours_ns - solution.bound_ns) / (problem.step_ns + ours_ns),
                "stall": None if solution.timeline is None else solution.timeline.stall_ns / problem.step_ns,
                "host_bytes": None if solution.timeline is None else solution.timeline.traffic.host_bytes,
                "solve_s": solve_s,
                "process_peak_bytes": memory_bytes,
                "best_replaying_peer": _best(p for p in fitting.values() if not p.offloaded),
                "best_offloading_peer": _best(p for p in fitting.values() if p.offloaded),
                "peers": {rule: _peer(peer) for rule, peer in fitting.items()},
                "told": {peer.rule: _peer(peer) for peer in told},
                "told_over_budget": sorted(peer.rule for peer in told if peer.timeline.peak_bytes > budget_bytes),
            }
        )
        for kind in ("best_replaying_peer", "best_offloading_peer"):
            if rows[-1][kind] is not None and ours_ns is not None:
                rows[-1][kind]["slower_by"] = (rows[-1][kind]["overhead_ns"] - ours_ns) / (problem.step_ns + ours_ns)
    return {
        "model": name,
        "device": device.name,
        "ops": len(problem.ops),
        "tensors": len(problem.tensors),
        "step_ns": problem.step_ns,
        "smallest_peak_bytes": low_bytes,
        "smallest_peak_bound_bytes": lowest.bound_bytes,
        "smallest_peak_s": lowest_s,
        "everything_saved_bytes": high_bytes,
        "trace_s": trace_s,
        "process_peak_after_trace_bytes": traced_bytes,
        "rows": rows,
    }


def _best(peers: Iterable[Any]) -> dict[str, Any] | None:
    best = min(peers, key=lambda peer: peer.overhead_ns, default=None)
    return None if best is None else _peer(best)


def _peer(peer: Any) -> dict[str, Any]:
    return {
        "rule": peer.rule,
        "setting": peer.setting,
        "peak_bytes": peer.timeline.peak_bytes,
        "overhead_ns": peer.overhead_ns,
        "believed_peak_bytes": peer.believed_peak_bytes,
    }


def _peak_memory_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def text(found: dict[str, Any]) -> str:
    lines = [
        f"{found['model']} on {found['device']}: {found['ops']} ops, {found['tensors']} tensors, smallest peak "
        f"{found['smallest_peak_bytes'] / 1e9:.2f} GB (at least {found['smallest_peak_bound_bytes'] / 1e9:.2f}, "
        f"{found['smallest_peak_s']:.1f} s), everything saved {found['everything_saved_bytes'] / 1e9:.2f} GB; "
        f"traced in {found['trace_s']:.1f} s",
        f"{'budget':>9} {'peak':>8} {'overhead':>9} {'gap':>7} {'of step':>8} {'solve':>8} {'memory':>8} "
        f"{'host':>9}  best peer within the budget",
    ]
    for row in found["rows"]:
        if row["overhead"] is None:
            lines.append(f"{row['budget_bytes'] / 1e9:6.2f} GB {row['status']}, {row['solve_s']:.1f} s")
            continue
        peers = []
        for kind in ("best_replaying_peer", "best_offloading_peer"):
            if row[kind] is not None:
                peers.append(f"{row[kind]['rule']} {row[kind]['slower_by']:+.2%}")
        over = f"; over it when told: {', '.join(row['told_over_budget'])}" if row["told_over_budget"] else ""
        lines.append(
            f"{row['budget_bytes'] / 1e9:6.2f} GB {row['peak_bytes'] / 1e9:8.2f} {row['overhead']:9.2%} "
            f"{row['gap']:7.2%} {row['gap_of_step']:8.2%} {row['solve_s']:6.1f} s "
            f"{row['process_peak_bytes'] / 1e9:5.2f} GB {row['host_bytes'] / 1e9:6.2f} GB  "
            f"{', '.join(peers) or 'none fits'}{over}"
        )
    times = [row["solve_s"] for row in found["rows"]]
    gaps = [row["gap"] for row in found["rows"]]
    lines.append(
        f"solve: median {statistics.median(times):.1f} s, most {max(times):.1f} s; gap: median "
        f"{statistics.median(gaps):.2%}, most {max(gaps):.2%}"
    )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=SPECS, default=list(SPECS), metavar="MODEL")
    parser.add_argument("--points", type=int, default=8)
    parser.add_argument("--time-limit", type=float, default=60.0, metavar="SECONDS")
    parser.add_argument(
        "--host-budget", metavar="SIZE", help="as of `planner solve`; 0 for plans that only save and replay"
    )
    parser.add_argument("--output", type=Path, default=Path("solver.json"))
    arguments = parser.parse_args()
    found = []
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=1, max_tasks_per_child=1, mp_context=fresh) as executor:
        for name in arguments.models:
            asked = (name, arguments.points, arguments.time_limit, arguments.host_budget)
            found.append(executor.submit(run_model, *asked).result())
            print(text(found[-1]), end="\n\n", flush=True)
            arguments.output.write_text(json.dumps(found, indent=2))  # after each model: the whole takes long


if __name__ == "__main__":
    main()
