"""The figures of the handbook's page that take a trace or a search: measured by commands, kept in solved.json."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
FILE = HERE / "solved.json"

Figures = dict[str, Any]

LENGTHS = (1024, 2048, 4096)
DEPTHS = (4, 16, 64)
GROWING = ("dense", "bigbird", "reformer", "linear")
_LLAMA = "examples/llama-3-8b.yaml"
_LONG = "examples/llama-3-8b-128k.yaml"
_7B = "examples/llama-2-7b-throughput.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """A command, and what the page takes from its JSON."""

    command: tuple[str, ...]
    figures: Callable[[Figures], Figures]


def planner(*arguments: str) -> Figures:
    """The JSON of a command of the planner; exit status 1 is an answer, too."""
    code = "from planner.cli import main; main()"
    command = [sys.executable, "-c", code, *arguments, "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"planner {' '.join(arguments)}: {done.stderr}")
    found: Figures = json.loads(done.stdout)
    return found


def _plan(found: Figures) -> Figures:
    keys = ("predicted_peak_bytes", "predicted_step_s", "recompute_s", "stall_s", "host_bytes", "gap")
    return {key: found[key] for key in keys} | {
        "static_bytes": found["static_bytes"]["total"],
        "baselines": {row["name"]: _baseline(row) for row in found["baselines"]},
    }


def _baseline(row: Figures) -> Figures:
    return {key: row[key] for key in ("peak_bytes", "step_s", "recompute_s")}


def _throughput(found: Figures) -> Figures:
    chosen = found["throughput"]
    return _plan(found) | {"tokens_per_s": chosen["tokens_per_s"], "tokens": chosen["tried"][0]["tokens"]}


def _link(found: Figures) -> Figures:
    return {"forward_busy": found["link"]["forward_busy"], "backward_busy": found["link"]["backward_busy"]}


def _plan_and_link(found: Figures) -> Figures:
    return _plan(found) | _link(found)


def _rivals(found: Figures) -> Figures:
    return {
        "fastest": {
            row["name"]: {key: row[key] for key in ("overhead", "stall_s", "peak_bytes")}
            for row in found["peers"][-1]["fastest"]
        }
    }


def _solve(spec: str, budget: str, *more: str) -> tuple[str, ...]:
    return ("solve", spec, "--budget", budget, *more)


# Each budget is the peak of the way by hand that the plan is compared with, rounded up to 10 MB, or what is left of
# 80 GB once 4 GB are left for what PyTorch does not count.
MEASUREMENTS: Mapping[str, Measurement] = {
    "every block, replays alone": Measurement(command=_solve(_LLAMA, "31.72GB", "--host-budget", "0"), figures=_plan),
    "every block": Measurement(command=_solve(_LLAMA, "31.72GB"), figures=_plan_and_link),
    "selective, replays alone": Measurement(command=_solve(_LLAMA, "49.47GB", "--host-budget", "0"), figures=_plan),
    "rivals": Measurement(command=("frontier", _LLAMA, "--points", "2", "--peers"), figures=_rivals),
    "128K": Measurement(command=_solve(_LONG, "80GB"), figures=_plan_and_link),
    "128K, replays alone": Measurement(command=_solve(_LONG, "80GB", "--host-budget", "0"), figures=_plan),
    "32K": Measurement(command=_solve("benchmarks/handbook/llama-3-8b-32k.yaml", "76GB"), figures=_plan_and_link),
    "micro-batch 16": Measurement(
        command=_solve(_7B, "80GB", "--objective", "throughput", "--micro-batches", "16", "--host-budget", "0"),
        figures=_throughput,
    ),
    "micro-batch 64": Measurement(
        command=_solve(_7B, "80GB", "--objective", "throughput", "--micro-batches", "64", "--host-budget", "0"),
        figures=_throughput,
    ),
}


def measure() -> Figures:
    """Every figure anew: some minutes."""
    with tempfile.TemporaryDirectory() as directory:
        found = {name: _measured(one, Path(directory)) for name, one in MEASUREMENTS.items()}
        found["two peaks"] = _peaks(Path(directory))
        found["growth"] = {
            name: [_traced(name, Path(directory), length=length)["saved_bytes"] for length in LENGTHS]
            for name in GROWING
        }
        found["depth"] = {str(depth): _deep(depth, Path(directory)) for depth in DEPTHS}
    return found


def _measured(one: Measurement, directory: Path) -> Figures:
    output = ("-o", str(directory / "plan.yaml")) if one.command[0] == "solve" else ()
    return one.figures(planner(*one.command, *output))


def _peaks(directory: Path) -> Figures:
    """The two peaks of a plan with as much memory as every block needs, by `planner report`."""
    plan = str(directory / "two-peaks.plan.yaml")
    planner(*MEASUREMENTS["selective, replays alone"].command, "-o", plan)
    memory = planner("report", plan, "--frontier", "0", "-o", str(directory / "page.html"))["memory"]
    return {row["phase"]: {key: row[key] for key in ("at", "bytes", "by_kind")} for row in memory["peaks"]}


def _variant(name: str, directory: Path, change: Callable[[Figures], None]) -> str:
    mapping = yaml.safe_load((HERE / f"{name}.yaml").read_text(encoding="utf-8"))
    change(mapping)
    for module in HERE.glob("*_attention.py"):  # factories are found beside their spec
        (directory / module.name).write_bytes(module.read_bytes())
    path = directory / f"{name}.yaml"
    path.write_text(yaml.safe_dump(mapping), encoding="utf-8")
    return str(path)


def _traced(name: str, directory: Path, *, length: int) -> Figures:
    def change(mapping: Figures) -> None:
        if "batch" in mapping:
            mapping["batch"]["sequence_length"] = length
        else:
            mapping["inputs"]["states"]["shape"][1] = length

    return planner("trace", _variant(name, directory, change))


def _deep(layers: int, directory: Path) -> Figures:
    def change(mapping: Figures) -> None:
        mapping["model"]["config"]["num_hidden_layers"] = layers

    spec = _variant("deep", directory, change)
    return _plan(planner("solve", spec, "--budget", "80GB", "-o", str(directory / "deep.plan.yaml")))


def load() -> Figures:
    """The figures as they were last measured."""
    found: Figures = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def write(found: Figures) -> None:
    FILE.write_text(json.dumps(found, indent=1, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")
