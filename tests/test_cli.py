"""The commands as a user meets them: exit status, one line for every mistake, and no file left behind."""

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import types
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from click import Context
from click.testing import CliRunner, Result

from planner import __version__
from planner.cli import main
from planner.errors import InfeasibleError
from planner.simulation.rehearsal import Rehearsal

pytest.importorskip("torch")
pytest.importorskip("ortools")

ROOT = Path(__file__).parent.parent
COMMAND = [sys.executable, "-c", "from planner.cli import main; main()"]
_names = (f"a_model_of_the_tests_{number}" for number in count())  # Python imports each name once

MODEL = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(x)))

def build(width=32, blocks=3):
    return nn.Sequential(*(Block(width) for _ in range(blocks)))
"""
INPUTS = "inputs:\n  input: {shape: [512, 32], dtype: float32}\n"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def spec() -> str:
    """A spec of a small model that traces in a blink."""
    return write_spec(MODEL)


def write_spec(code: str, *, function: str = "build", more: str = INPUTS) -> str:
    name = next(_names)
    Path(f"{name}.py").write_text(textwrap.dedent(code))
    Path("model.yaml").write_text(f"model:\n  factory: {name}:{function}\n{more}")
    return "model.yaml"


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(main, list(arguments))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def files() -> dict[str, bytes]:
    return {
        name: Path(name).read_bytes() for name in os.listdir() if Path(name).is_file() and not name.endswith(".pyc")
    }


def refused(*arguments: str, status: int = 2) -> str:
    """The one line that the command writes to stderr; it exits with the status and changes no file."""
    before = files()
    result = run(*arguments)
    assert status == result.exit_code, result.output
    assert before == files()
    (line,) = result.stderr.splitlines()
    assert line.startswith("planner: error: ")
    return line.removeprefix("planner: error: ")


def peaks(spec: str) -> dict[str, int]:
    """The peak of every baseline."""
    found = json.loads(run("solve", spec, "--budget", "80GB", "--json", "-o", "any.yaml").stdout)
    Path("any.yaml").unlink()
    return {row["name"]: row["peak_bytes"] for row in found["baselines"]}


# ---- what works


def test_verify_runs_the_plan_and_finds_the_same_bits(spec: str) -> None:
    limits = peaks(spec)
    budget_bytes = (limits["no checkpointing"] + limits["every block"]) // 2
    run("solve", spec, "--budget", f"{budget_bytes}B")

    result = run("verify", spec, "model.plan.yaml", "--steps", "1", "--json")

    found = json.loads(result.stdout)
    assert 0 == result.exit_code, result.output
    assert found["gradients_equal"]
    assert found["loss_equal"]
    assert found["measured_peak_bytes"] <= found["budget_bytes"]
    assert found["measured_peak_bytes"] < found["baseline_peak_bytes"]
    assert [] == found["failures"]


def test_verify_refuses_a_plan_for_another_run(spec: str) -> None:
    run("solve", spec, "--budget", "80GB")
    write_spec(MODEL, more="inputs:\n  input: {shape: [256, 32], dtype: float32}\n")

    said = refused("verify", "model.yaml", "model.plan.yaml")
    assert "a micro-batch of 512, and model.yaml has 256" in said
    write_spec(MODEL.replace("blocks=3", "blocks=2"))
    assert "solve again" in refused("verify", "model.yaml", "model.plan.yaml")
    assert "no.plan.yaml" in refused("verify", "model.yaml", "no.plan.yaml")


def test_solve_writes_a_plan_that_fits_and_says_what_it_gives(spec: str) -> None:
    from planner.plan import load_plan

    limits = peaks(spec)
    budget_bytes = (limits["no checkpointing"] + limits["every block"]) // 2
    result = run("solve", spec, "--budget", f"{budget_bytes}B")
    assert 0 == result.exit_code, result.output
    plan = load_plan("model.plan.yaml")
    assert budget_bytes == plan.budget_bytes
    assert plan.predicted.peak_bytes <= budget_bytes
    assert 0 < plan.predicted.recompute_s
    assert {"this plan", "no checkpointing", "every block", "selective"} <= set(
        re.findall(r"^(\w[\w √]*?)  +(?:yes|no) ", result.stdout, re.MULTILINE)
    )
    assert "model.plan.yaml" in result.stdout
    assert re.match(r"planner: traced \d+ ops in [\d.]+ s\n", result.stderr)


def test_solve_prints_nothing_but_one_object_as_json(spec: str) -> None:
    result = run("solve", spec, "--budget", "1GB", "--json", "--quiet", "-o", "out.yaml")
    found = json.loads(result.stdout)
    assert "" == result.stderr
    assert ("optimal", 0, 10**9, "out.yaml") == tuple(found[key] for key in ("status", "gap", "budget_bytes", "plan"))
    assert {
        *("predicted_peak_bytes", "predicted_peak_at", "predicted_step_s", "recompute_s", "stall_s"),
        *("host_bytes", "solve_seconds", "trace_seconds", "rehearse_seconds", "baselines", "notes"),
    } <= set(found)
    static = found["static_bytes"]
    assert static["total"] == sum(size for part, size in static.items() if part != "total")
    parameters = 3 * (32 * 128 + 128 + 128 * 32 + 32)
    assert (4 * parameters, 8 * parameters) == (static["parameters"], static["optimizer"])
    assert {"name", "fits", "peak_bytes", "step_s", "recompute_s"} == set(found["baselines"][0])


def test_the_same_run_gives_the_same_plan_bytes(spec: str) -> None:
    budget = f"{peaks(spec)['selective']}B"
    run("solve", spec, "--budget", budget, "-o", "a.yaml")
    run("solve", spec, "--budget", budget, "-o", "b.yaml")
    assert Path("a.yaml").read_bytes() == Path("b.yaml").read_bytes()


def test_the_order_of_hashes_changes_no_byte_of_a_plan() -> None:
    write_spec(MODEL.replace("blocks=3", "blocks=6"))
    budget_bytes = sum(peaks("model.yaml")[name] for name in ("no checkpointing", "every block")) // 2
    processes = [
        subprocess.Popen(
            [*COMMAND, "solve", "model.yaml", f"--budget={budget_bytes}B", "--gap=0", "-q", "-o", f"{seed}.yaml"],
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": seed},
            stdout=subprocess.DEVNULL,
        )
        for seed in ("0", "1")
    ]

    assert [0, 0] == [process.wait(timeout=120) for process in processes]
    assert 1 == len({Path(f"{seed}.yaml").read_bytes() for seed in ("0", "1")})
    assert b"recompute" in Path("0.yaml").read_bytes()


def test_a_dash_prints_the_plan_instead_of_the_table(spec: str) -> None:
    result = run("solve", spec, "--budget", "1GB", "-o", "-")
    run("solve", spec, "--budget", "1GB", "-o", "file.yaml")
    assert Path("file.yaml").read_text() == result.stdout
    assert not Path("model.plan.yaml").exists()


def throughput(spec: str, *arguments: str) -> Result:
    """`solve` for throughput at the peak of saving everything for the spec's own micro-batch, which is 512."""
    budget = f"{peaks(spec)['no checkpointing']}B"
    return run("solve", spec, "--budget", budget, "--objective", "throughput", *arguments)


def test_solve_for_throughput_chooses_the_micro_batch_and_plans_for_it(spec: str) -> None:
    from planner.plan import load_plan

    limit = peaks(spec)["no checkpointing"]
    result = throughput(spec, "--micro-batches", "256,512,4096,520")

    assert 0 == result.exit_code, result.output
    plan = load_plan("model.plan.yaml")
    assert plan.model.micro_batch in (256, 512, 520)
    assert plan.predicted.peak_bytes <= limit
    rows = re.findall(r"^(\d+)  +[\d.,–]+ .* (yes|no)  +(?:traced|scaled|–)$", result.stdout, re.MULTILINE)
    assert [("256", "yes"), ("512", "yes"), ("520", "yes"), ("4096", "no")] == rows
    assert f"Chosen     micro-batch {plan.model.micro_batch}" in result.stdout
    assert "Note: the first axis is assumed to be the micro-batch in these inputs: input" in result.stdout
    assert "Plan       model.plan.yaml" in result.stdout  # the usual report follows
    said = [line for line in result.stderr.splitlines() if line.startswith("planner: micro-batch ")]
    assert 4 <= len(said)
    text = Path("model.yaml").read_text().replace("shape: [512", f"shape: [{plan.model.micro_batch}")
    Path("model.yaml").write_text(text)
    assert 0 == run("verify", "model.yaml", "model.plan.yaml", "--steps", "1", "--quiet").exit_code


def test_solve_for_throughput_as_json(spec: str) -> None:
    result = throughput(spec, "--micro-batches", "256,512", "--json", "--quiet")

    found = json.loads(result.stdout)
    table = found["throughput"]
    best = max(table["tried"], key=lambda row: row["tokens_per_s"])
    assert ("complete", "samples", 512) == (table["status"], table["unit"], table["own_micro_batch"])
    assert [256, 512] == [row["micro_batch"] for row in table["tried"]]
    assert (best["micro_batch"], best["tokens_per_s"]) == (table["micro_batch"], table["tokens_per_s"])
    assert best["step_s"] == found["predicted_step_s"]
    assert "" == result.stderr


def test_solve_searches_for_the_micro_batch_from_the_specs(spec: str) -> None:
    found = json.loads(throughput(spec, "--json").stdout)["throughput"]

    sizes = [row["micro_batch"] for row in found["tried"]]
    assert {256, 512, 1024} <= set(sizes)
    assert sizes == sorted(set(sizes))
    fitting = [row for row in found["tried"] if row["verdict"] == "fits"]
    assert max(row["tokens_per_s"] for row in fitting) == found["tokens_per_s"]


@pytest.mark.parametrize("as_json", [False, True])
def test_throughput_has_no_answer_when_nothing_fits(spec: str, as_json: bool) -> None:
    arguments = ("--objective", "throughput", "--micro-batches", "256,512", *(["--json"] if as_json else []))
    result = run("solve", spec, "--budget", "1KB", "--no-advice", *arguments)

    assert 1 == result.exit_code
    assert not Path("model.plan.yaml").exists()
    if as_json:
        found = json.loads(result.stdout)
        assert ("infeasible", None, None) == (found["status"], found["plan"], found["throughput"]["micro_batch"])
        assert ["too large at any size", "not tried"] == [row["verdict"] for row in found["throughput"]["tried"]]
    else:
        assert "Micro-batch 512 not tried: 256 is too large already" in result.stdout
        assert "Smallest peak" in result.stdout


@pytest.mark.parametrize("as_json", [False, True])
def test_an_interrupted_search_prints_what_is_done_and_writes_nothing(
    spec: str, as_json: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from planner import throughput as search

    solve, calls = search.solve_graph, count()

    def interrupted(*arguments: Any, **options: Any) -> Any:
        if next(calls) == 2:
            raise KeyboardInterrupt
        return solve(*arguments, **options)

    limit = peaks(spec)["no checkpointing"]
    monkeypatch.setattr(search, "solve_graph", interrupted)
    before = files()
    arguments = ("--objective", "throughput", "--micro-batches", "64,128,256", *(["--json"] if as_json else []))
    result = run("solve", spec, "--budget", f"{limit}B", *arguments)

    assert 130 == result.exit_code
    assert "planner: error: interrupted" == result.stderr.splitlines()[-1]
    assert before == files()
    if as_json:
        found = json.loads(result.stdout)
        assert ("interrupted", True, None) == (found["status"], found["interrupted"], found["plan"])
        assert [64, 128] == [row["micro_batch"] for row in found["throughput"]["tried"]]
    else:
        assert "INTERRUPTED: 2 micro-batches are done, and none is chosen" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("--micro-batches", "1,2"), "--micro-batches needs --objective throughput"),
        (("--objective", "throughput", "--micro-batches", "1,0"), "'1,0' is not a list of whole numbers from 1"),
        (("--objective", "throughput", "--micro-batches", "many"), "is not a list of whole numbers"),
        (("--objective", "throughput", "--micro-batches", "1000000001"), "whole numbers from 1 to 1,000,000,000"),
        (("--objective", "throughput", "--micro-batches", "9" * 5000), "whole numbers from 1 to 1,000,000,000"),
        (("--objective", "speed"), "'speed' is not one of 'time', 'throughput'"),
    ],
)
def test_micro_batches_that_mean_nothing_are_refused(spec: str, arguments: tuple[str, ...], part: str) -> None:
    result = run("solve", spec, "--budget", "1GB", *arguments)

    assert 2 == result.exit_code
    assert part in result.stderr
    assert not Path("model.plan.yaml").exists()


def test_trace_says_what_is_computed_and_saved(spec: str) -> None:
    found = json.loads(run("trace", spec, "--json", "--quiet", "--graph", "graph.json").stdout)
    # Forward has two products per block; backward has two for each, except for the gradient of the input.
    product = 2 * 512 * 32 * 128
    assert (6 * product, 11 * product) == (found["forward_flops"], found["backward_flops"])
    assert 3 * (32 * 128 + 128 + 128 * 32 + 32) == found["parameters"]
    # Of each block: the result of `up`, that of gelu, and the input, which for the first is no activation.
    assert 4 * 512 * (3 * (128 + 128) + 2 * 32) == found["saved_bytes"]
    assert "{0..2}.down" in {row["modules"] for row in found["by_module"]}
    assert {"ops", "saved_tensors", "static_bytes", "seconds", "by_op", "largest", "notes"} <= set(found)
    from planner.graph import from_node_link

    assert found["ops"] == len(from_node_link(json.loads(Path("graph.json").read_text())))


def test_trace_prints_lists_as_long_as_asked(spec: str) -> None:
    found = json.loads(run("trace", spec, "--top", "1", "--json").stdout)
    assert [1, 1, 1] == [len(found[name]) for name in ("by_module", "by_op", "largest")]
    assert all(len(line) <= 100 for line in run("trace", spec).stdout.splitlines())


def test_frontier_shows_what_each_budget_costs(spec: str) -> None:
    result = run("frontier", spec, "--points", "4")
    limits = peaks(spec)

    assert 0 == result.exit_code, result.output
    assert 4 == len(re.findall(r"^[\d.]+ GB .* (?:optimal|feasible)$", result.stdout, re.MULTILINE))
    assert all(re.search(rf"^{re.escape(name)} ", result.stdout, re.MULTILINE) for name in limits)
    assert "budget 4 of 4" in result.stderr
    assert "Fastest that fits" not in result.stdout


def test_frontier_prints_nothing_but_one_object_as_json(spec: str) -> None:
    result = run("frontier", spec, "--points", "3", "--json", "--quiet", "--peers", "--time-limit", "5")
    found = json.loads(result.stdout)
    limits = peaks(spec)

    assert "" == result.stderr
    assert "complete" == found["status"]
    assert limits == {row["name"]: row["peak_bytes"] for row in found["baselines"]}
    assert limits["no checkpointing"] == found["points"][-1]["budget_bytes"]
    overheads = [point["overhead"] for point in found["points"]]
    assert sorted(overheads, reverse=True) == overheads
    assert found["budgets_bytes"] == [row["budget_bytes"] for row in found["peers"]]
    assert "min-cut" in {rival["name"] for rival in found["peers"][-1]["fastest"]}


@pytest.mark.parametrize(("name", "start"), [("a.png", b"\x89PNG"), ("a.svg", b"<?xml")])
def test_frontier_draws_a_picture(spec: str, name: str, start: bytes) -> None:
    pytest.importorskip("matplotlib")
    result = run("frontier", spec, "--points", "2", "--output", name)

    assert 0 == result.exit_code, result.output
    assert Path(name).read_bytes().startswith(start)


def test_frontier_draws_only_pictures_it_knows(spec: str) -> None:
    before = files()
    result = run("frontier", spec, "--output", "a.pdf")

    assert 2 == result.exit_code
    assert "must end in .png or .svg" in result.stderr
    assert before == files()


@pytest.mark.parametrize("as_json", [False, True])
def test_an_interrupted_frontier_prints_what_is_done_and_draws_nothing(
    spec: str, as_json: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from planner import tradeoff

    solve, calls = tradeoff.solve, count()

    def interrupted(*arguments: Any, **options: Any) -> Any:
        if next(calls) == 2:
            raise KeyboardInterrupt
        return solve(*arguments, **options)

    monkeypatch.setattr(tradeoff, "solve", interrupted)
    monkeypatch.setitem(sys.modules, "planner.reporting.picture", types.SimpleNamespace(picture=None))
    before = files()
    result = run("frontier", spec, "--points", "4", "--output", "a.svg", *(["--json"] if as_json else []))

    assert 130 == result.exit_code
    assert "planner: error: interrupted" == result.stderr.splitlines()[-1]
    assert before == files()
    if as_json:
        found = json.loads(result.stdout)
        assert ("interrupted", 2, 4) == (found["status"], len(found["points"]), len(found["budgets_bytes"]))
    else:
        assert "INTERRUPTED: 2 of 4 budgets are done" in result.stdout


def test_compare_shows_each_technique_and_recommends_one(spec: str) -> None:
    limits = peaks(spec)
    budget_bytes = (limits["no checkpointing"] + limits["every block"]) // 2
    result = run("compare", spec, "--budget", f"{budget_bytes}B", "--time-limit", "2")

    assert 0 == result.exit_code, result.output
    assert "every block" in result.stdout
    assert "Recommended: " in result.stdout.splitlines()[-2] + result.stdout.splitlines()[-1]
    assert {"model.yaml"} == {name for name in files() if name.endswith(".yaml")}


def test_compare_prints_nothing_but_one_object_as_json(spec: str) -> None:
    limits = peaks(spec)
    result = run("compare", spec, "--budget", "1GB", "--json", "--quiet")
    found = json.loads(result.stdout)

    assert "" == result.stderr
    assert ("complete", "as it is", []) == (found["status"], found["recommended"], found["changes"])
    assert limits["no checkpointing"] == found["own"]["peak_bytes"]
    assert limits["every block"] == next(row["peak_bytes"] for row in found["alone"] if row["name"] == "every block")


def test_compare_exits_with_1_where_nothing_fits(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planner.planning._LOWEST_PEAK_TIME_S", 0.5)
    result = run("compare", spec, "--budget", "1kB", "--time-limit", "1", "--quiet")

    assert 1 == result.exit_code
    assert "None of these fits" in result.stdout


@pytest.mark.parametrize("as_json", [False, True])
def test_an_interrupted_compare_prints_what_is_done(spec: str, as_json: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: Any, **options: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("planner.comparison.solve_graph", interrupted)
    result = run("compare", spec, "--budget", "1GB", *(["--json"] if as_json else []))

    assert 130 == result.exit_code
    assert "planner: error: interrupted" == result.stderr.splitlines()[-1]
    if as_json:
        found = json.loads(result.stdout)
        assert ("interrupted", None) == (found["status"], found["recommended"])
        assert "every block" in {row["name"] for row in found["alone"]}
    else:
        assert "INTERRUPTED: " in result.stdout


def test_devices_and_presets_are_listed() -> None:
    assert "h100-80gb" in run("devices").stdout
    assert "llama-3-8b" in run("presets").stdout
    devices = json.loads(run("devices", "--json").stdout)["devices"]
    assert 80_000_000_000 == next(d["memory_bytes"] for d in devices if d["name"] == "h100-80gb")
    assert "gpt2" in {preset["name"] for preset in json.loads(run("presets", "--json").stdout)["presets"]}


def test_the_version_is_the_packages() -> None:
    assert f"planner, version {__version__}\n" == run("--version").stdout


@pytest.mark.parametrize("command", ["solve", "frontier", "compare", "trace", "devices", "presets"])
def test_every_command_explains_itself_with_examples(command: str) -> None:
    text = run(command, "--help").stdout
    assert f"  planner {command}" in text


def defaults_of(command: str) -> dict[str, object]:
    found = main.get_command(Context(main), command)
    assert found is not None
    return {option.name: option.default for option in found.params if option.name}


def test_the_defaults_shown_are_the_solvers_own() -> None:
    from planner.solving.search import Limits

    defaults = defaults_of("solve")
    assert (Limits().time_s, Limits().gap) == (defaults["time_limit"], defaults["gap"])

    from planner.tradeoff import POINT_LIMITS, POINTS

    defaults = defaults_of("frontier")
    assert (POINT_LIMITS.time_s, POINT_LIMITS.gap) == (defaults["time_limit"], defaults["gap"])
    assert POINTS == defaults["points"]


@pytest.mark.parametrize("arguments", [(), ("--help",), ("solve", "--help"), ("devices",)])
def test_what_needs_no_model_loads_neither_torch_nor_a_solver(arguments: tuple[str, ...]) -> None:
    code = (
        "import sys\n"
        "from planner.cli import main\n"
        f"main({list(arguments)!r}, standalone_mode=False) if {bool(arguments)} else None\n"
        "heavy = {'torch', 'networkx', 'ortools', 'transformers', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True)


def test_every_example_and_benchmark_can_be_read_and_plans_for_its_device() -> None:
    from planner.device import load_device
    from planner.spec import load

    paths = [*(ROOT / "examples").glob("*.yaml"), *(ROOT / "benchmarks" / "models").glob("*.yaml")]
    assert len(paths) >= 10
    for path in paths:
        load_device(load(path).device, directory=path.parent)


def test_what_a_device_is_given_without_is_said_where_times_are_predicted(spec: str, tmp_path: Path) -> None:
    bare, whole = tmp_path / "bare.yaml", tmp_path / "whole.yaml"
    bare.write_text("memory: 24GB\nmemory_bytes_per_s: 9.0e11\nhost_memory: 0GB\n")
    rates = "peak_flops_per_s: {float32: 3.0e13}\nhost_link_bytes_per_s: 2.0e10\n"
    whole.write_text(bare.read_text() + rates)

    said, silent = (run("solve", spec, "--budget", "1GB", "--device", str(path)).stderr for path in (bare, whole))

    assert (
        "planner: bare is given without peak_flops_per_s, host_link_bytes_per_s: an h100-80gb's are assumed\n" in said
    )
    assert "are assumed" not in silent


def test_a_budget_above_the_devices_memory_is_a_warning(spec: str) -> None:
    result = run("solve", spec, "--budget", "41GB", "--device", "a100-40gb", "--quiet")
    assert 0 == result.exit_code
    assert "planner: warning: the budget of 41GB is more than the 40.0 GB of a100-40gb\n" == result.stderr


def test_what_a_models_code_prints_does_not_mix_with_results() -> None:
    spec = write_spec(
        MODEL + "import logging, warnings\nprint('hello')\n"
        "warnings.warn('careful')\nlogging.getLogger('transformers').error('beware')\n"
    )
    result = run("trace", spec, "--json", "--quiet")
    assert json.loads(result.stdout)["parameters"]
    assert "hello\n" == result.stderr


def test_verbose_lets_warnings_through() -> None:
    spec = write_spec(MODEL + "import warnings\nwarnings.warn('careful')\n")
    with pytest.warns(UserWarning, match="careful"):
        run("trace", spec, "--verbose")


# ---- no plan fits


def infeasible_budget(spec: str) -> str:
    return f"{peaks(spec)['every block'] // 2}B"


def test_no_plan_fits_is_an_answer_with_ways_out(spec: str) -> None:
    Path("model.plan.yaml").write_text("precious")
    budget = infeasible_budget(spec)
    text = run("solve", spec, "--budget", budget, "--quiet")
    assert 1 == text.exit_code
    for part in (
        "Static memory",
        "Smallest peak",
        "Reached at",
        "optimizer: {name: adamw-8bit}",
        "parallel.fsdp:",
    ):
        assert part in text.stdout
    assert refused("solve", spec, "--budget", budget, "--quiet", status=1).startswith("no plan fits: the budget")
    assert "precious" == Path("model.plan.yaml").read_text()


def test_no_plan_fits_as_json(spec: str) -> None:
    budget = infeasible_budget(spec)
    result = run("solve", spec, "--budget", budget, "--json", "--quiet")
    found = json.loads(result.stdout)
    assert (1, "infeasible", None) == (result.exit_code, found["status"], found["plan"])
    assert int(budget[:-1]) == found["budget_bytes"] < found["bound_bytes"] <= found["smallest_peak_bytes"]
    assert found["smallest_peak_at"]
    assert {"parameters", "gradients", "optimizer", "unsharded", "total"} == set(found["static_bytes"])
    assert 1 <= len(found["ways_out"]) <= 3
    for way in found["ways_out"]:
        assert way["fits"] == (way["peak_bytes"] <= found["budget_bytes"])
    assert not Path("model.plan.yaml").exists()


def test_a_budget_below_static_memory_is_infeasible(spec: str) -> None:
    line = refused("solve", spec, "--budget", "1KB", "--quiet", "--no-advice", status=1)
    assert line.startswith("no plan fits: the budget is 1.0 KB; static memory is ")


def test_a_way_out_does_what_it_says(spec: str) -> None:
    budget = infeasible_budget(spec)
    found = json.loads(run("solve", spec, "--budget", budget, "--json", "--quiet").stdout)
    way = next(way for way in found["ways_out"] if way["change"].startswith("parallel.fsdp: "))
    degree = way["change"].removeprefix("parallel.fsdp: ")
    Path("model.yaml").write_text(Path("model.yaml").read_text() + f"parallel: {{fsdp: {degree}}}\n")
    changed = run("solve", spec, "--budget", f"{way['peak_bytes']}B", "--quiet")
    assert 0 == changed.exit_code, changed.output


def test_a_search_that_ran_out_of_time_is_unknown_not_infeasible(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def give_up(*_: Any, **__: Any) -> None:
        raise InfeasibleError(
            "no plan was found within the time limit",
            budget_bytes=5,
            static_bytes=1,
            smallest_peak_bytes=6,
            bound_bytes=2,
            where="backward",
            is_proven=False,
        )

    monkeypatch.setattr("planner.planning.solve_graph", give_up)
    result = run("solve", spec, "--budget", "5B", "--json", "--no-advice")
    assert (1, "unknown") == (result.exit_code, json.loads(result.stdout)["status"])


def test_solve_rehearses_the_plan_it_writes(spec: str) -> None:
    budget = f"{peaks(spec)['selective']}B"
    result = run("solve", spec, "--budget", budget)

    (line,) = (line for line in result.stderr.splitlines() if line.startswith("planner: rehearsed: peak "))
    assert "from the simulation" not in line
    assert re.search(r"^Took .* to rehearse$", result.stdout, re.MULTILINE)


def over_budget(step: Any, plan: Any) -> Rehearsal:
    """A rehearsal of a plan that always takes a byte more than it may."""
    peak_bytes = plan.budget_bytes + 1
    return Rehearsal(peak_bytes=peak_bytes, peak_at="backward", live_bytes=(), replays=0, fallbacks=0, wall_s=0.0)


@pytest.mark.parametrize("more", [(), ("-o", "-"), ("--json",)])
def test_a_plan_that_the_runtime_cannot_keep_within_the_budget_is_not_written(
    spec: str, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...]
) -> None:
    budget = f"{peaks(spec)['selective']}B"
    monkeypatch.setattr("planner.runtime.rehearsal.rehearse", over_budget)

    before = files()
    result = run("solve", spec, "--budget", budget, "--no-advice", "--quiet", *more)

    assert 1 == result.exit_code
    assert before == files()
    assert "decisions:" not in result.stdout
    (line,) = result.stderr.splitlines()
    assert line.startswith("planner: error: no plan was found that stays within ")
    assert "in 3 rounds" in line


def test_a_model_that_fails_only_in_a_rehearsal_is_one_line_with_its_place() -> None:
    code = """
    import torch
    from torch import nn

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(32, 32)
            self.left = 1

        def forward(self, input):
            self.left -= 1
            if self.left < 0:
                raise RuntimeError("only once")
            return torch.tanh(self.inner(input))

    def build():
        return Twice()
    """
    line = refused("solve", write_spec(code), "--budget", "1GB", "--quiet")

    assert line.startswith("model.yaml:2: model.factory: ")
    assert "only once" in line


# ---- mistakes


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("model: {preset: gpt2\nbatch: {micro_batch: 1}\n", "model.yaml:2: not valid YAML"),
        ("model:\n\tpreset: gpt2\n", "model.yaml:2: not valid YAML"),
        ("", "model.yaml: the file is empty"),
        (
            "model: {preset: gpt2}\nbtach: {micro_batch: 1}\n",
            "model.yaml:2: btach: unknown key; did you mean 'batch'?",
        ),
        (
            "model: {preset: gpt2}\nbatch:\n  micro_batch: one\n",
            "model.yaml:3: batch.micro_batch: expected a positive integer, found 'one'",
        ),
        (
            "model: {preset: gpt2}\nbatch:\n  micro_batch: -1\n",
            "model.yaml:3: batch.micro_batch: expected a positive integer, found -1",
        ),
        ("model: {preset: gtp2}\nbatch: {micro_batch: 1}\n", "did you mean 'gpt2'?"),
        (
            "model: {preset: gpt2}\nbatch: {micro_batch: 1}\ndevice: h10\n",
            "model.yaml:3: device: unknown device 'h10'",
        ),
        ("model: {preset: gpt2}\nbatch: {micro_batch: 1}\n", "model.yaml:2: batch.sequence_length: "),
        (
            "model: {preset: gpt2}\nbatch: {micro_batch: 1, sequence_length: 2048}\n",
            "2048 is more than the 1024 positions",
        ),
        (
            "model:\n  factory: not_there_at_all:build\n" + INPUTS,
            "model.yaml:2: model.factory: cannot import not_there_at_all",
        ),
    ],
)
def test_a_spec_that_cannot_be_used_is_one_line_with_its_place(text: str, complaint: str) -> None:
    Path("model.yaml").write_text(text)
    assert complaint in refused("solve", "model.yaml", "--budget", "1GB")


def test_a_spec_that_is_not_there_is_named() -> None:
    assert "no.yaml: no such file" == refused("solve", "no.yaml", "--budget", "1GB")
    assert "no.yaml: no such file" == refused("trace", "no.yaml")


@pytest.mark.parametrize(
    ("budget", "complaint"),
    [
        ("40", "--budget: '40' has no unit; write 40GB (10^9 bytes) or 40GiB (2^30 bytes)"),
        ("0GB", "--budget: a size must be at least one byte, found '0GB'"),
        ("-1GB", "--budget: a size must be at least one byte"),
        ("40G", "write 40GB or 40GiB"),
        ("much", "cannot read 'much'"),
        ("nan", "cannot read 'nan'"),
    ],
)
def test_a_budget_that_cannot_be_read_says_how_to_write_one(spec: str, budget: str, complaint: str) -> None:
    assert complaint in refused("solve", spec, f"--budget={budget}")
    assert complaint in refused("compare", spec, f"--budget={budget}")


@pytest.mark.parametrize("command", [("solve", "--budget=1GB"), ("compare", "--budget=1GB"), ("frontier",)])
@pytest.mark.parametrize(
    ("budget", "complaint"),
    [
        ("5", "--host-budget: '5' has no unit; write 5GB"),
        ("-5GB", "--host-budget: a size must be at least one byte, or 0 for none, found '-5GB'"),
        ("", "--host-budget: cannot read ''"),
    ],
)
def test_a_host_budget_that_cannot_be_read_says_so(
    spec: str, command: tuple[str, ...], budget: str, complaint: str
) -> None:
    assert complaint in refused(command[0], spec, *command[1:], f"--host-budget={budget}")


def test_a_host_budget_beyond_the_hosts_memory_is_warned_of(spec: str) -> None:
    device = Path("small-host.yaml")
    device.write_text("memory: 80GB\nhost_memory: 8GB\n")
    result = run("solve", spec, "--budget", "1GB", "--device", str(device), "--host-budget", "9GB", "--quiet")

    assert 0 == result.exit_code
    assert "warning: the host budget of 9GB is more than the 8.0 GB of host memory of small-host" in result.stderr


@pytest.mark.parametrize(
    ("code", "function", "complaint"),
    [
        (MODEL, "biuld", "has no attribute biuld; did you mean 'build'?"),
        ("def build():\n    raise RuntimeError('first\\nsecond')\n", "build", "raised RuntimeError: first"),
        ("def build():\n    return 3\n", "build", "returned a int, expected a torch.nn.Module"),
        ("import sys\ndef build():\n    sys.exit(7)\n", "build", "yaml:1: model: the model's code ended"),
        ("import sys\ndef build():\n    sys.exit(7)\n", "build", "exit status 7"),
        ("import sys\ndef build():\n    sys.exit()\n", "build", "ended the program with exit status 0"),
        ("def build():\n    raise BaseException\n", "build", "ended the program by BaseException"),
        (
            "class Mute(Exception):\n    def __str__(self): raise ValueError\ndef build():\n    raise Mute\n",
            "build",
            "raised Mute",
        ),
        ("import torch\ndef build(): return torch.nn.LazyLinear(4)\n", "build", "weight of"),
        ("import not_there_either\n", "build", "No module named 'not_there_either'"),
        ("build = (\n", "build", "failed: SyntaxError"),
    ],
)
def test_a_factory_that_fails_is_one_line(code: str, function: str, complaint: str) -> None:
    line = refused("solve", write_spec(code, function=function), "--budget", "1GB")
    assert complaint in line
    assert "model.yaml" in line


def test_a_forward_that_needs_data_is_one_line_that_names_the_module() -> None:
    spec = write_spec(
        MODEL
        + """
class Peeking(nn.Linear):
    def forward(self, x):
        return super().forward(x) if x.sum() > 0 else x

def build():
    return nn.Sequential(nn.Linear(32, 32), Peeking(32, 32))
"""
    )
    line = refused("solve", spec, "--budget", "1GB")
    assert line.startswith("model.yaml:2: model.factory: in 1: ")
    assert "without data" in line


def test_an_argument_that_forward_lacks_is_one_line() -> None:
    spec = write_spec(MODEL, more="inputs:\n  other: {shape: [2, 32], dtype: float32}\n")
    assert "model.yaml:4: inputs.other: forward of" in (line := refused("trace", spec))
    assert line.endswith("has no such argument; it takes: input")


def test_a_loss_that_fails_is_one_line_with_its_place() -> None:
    name = write_spec(MODEL + "\n\ndef loss(output, inputs):\n    raise ValueError('no loss')\n")
    module = Path(name).read_text().split("factory: ")[1].partition(":")[0]
    Path(name).write_text(Path(name).read_text() + f"loss: {module}:loss\n")
    assert f"model.yaml:5: loss: {module}:loss raised ValueError: no loss" == refused("trace", name)


@pytest.mark.parametrize("output", ["no/such/folder/plan.yaml", ".", "model.yaml/plan.yaml"])
def test_an_output_that_cannot_be_written_is_found_before_the_work(spec: str, output: str) -> None:
    assert f"{Path(output)}: cannot be written" in refused("solve", spec, "--budget", "1GB", "-o", output)
    assert "cannot be written" in refused("trace", spec, "--graph", output)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_results_that_cannot_be_written_are_one_line() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*COMMAND, "devices"], stdout=full, stderr=subprocess.PIPE, text=True, cwd=ROOT, check=False
        )
    expected = "planner: error: the results cannot be written: No space left on device\n"
    assert (2, expected) == (done.returncode, done.stderr)


def test_an_unknown_device_is_refused_with_a_guess(spec: str) -> None:
    assert "unknown device 'h100'; did you mean 'h100-80gb'?" in refused(
        "solve", spec, "--budget", "1GB", "--device", "h100"
    )
    assert "gpu.yaml: no such file" in refused("solve", spec, "--budget", "1GB", "--device", "gpu.yaml")


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--budget", "1GB", "--time-limit", "0"),
        ("--budget", "1GB", "--time-limit", "nan"),
        ("--budget", "1GB", "--gap", "-1"),
        ("--budget", "1GB", "--bugdet", "2GB"),
        ("--budget", "1GB", "--json", "-o", "-"),
    ],
)
def test_wrong_usage_exits_with_two(spec: str, arguments: tuple[str, ...]) -> None:
    assert refused("solve", spec, *arguments).endswith(". See main solve --help")


@pytest.mark.parametrize("command", ["", *main.list_commands(Context(main))])
def test_what_click_refuses_is_one_line_with_the_way_out(command: str) -> None:
    path = f"main {command}".strip()  # of the function that tests call
    assert f"no such option '--zzz'. See {path} --help" == refused(*command.split(), "--zzz")


def test_an_unknown_command_is_one_line_with_the_closest() -> None:
    assert "no such command 'solv'. Did you mean 'solve'? See main --help" == refused("solv")


def test_without_arguments_there_is_help_in_full() -> None:
    assert "Commands:" in run().output


@pytest.mark.parametrize(
    ("package", "extra"),
    [("torch", "solve"), ("networkx", "solve"), ("ortools", "solve"), ("transformers", "hf"), ("matplotlib", "plot")],
)
def test_a_missing_package_is_one_line_that_says_what_to_install(package: str, extra: str) -> None:
    Path("model.yaml").write_text("model: {preset: gpt2}\nbatch: {micro_batch: 1, sequence_length: 8}\n")
    code = (
        "import sys\n"
        "class Absent:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name.partition('.')[0] == {package!r}:\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Absent())\n"
        "from planner.cli import main\n"
        "main()"
    )
    command = ["frontier", "model.yaml", "-o", "a.svg"] if extra == "plot" else ["solve", "model.yaml", "--budget=1GB"]
    done = subprocess.run(
        [sys.executable, "-c", code, *command],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    (line,) = done.stderr.splitlines()
    assert 2 == done.returncode
    assert line.endswith(f"pip install 'activation-planner[{extra}]'")
    assert package in line


@pytest.mark.parametrize("moment", ["networkx", "torch._C", "ortools", "transformers"])
def test_an_interrupt_ends_in_one_line_and_leaves_the_old_plan(moment: str) -> None:
    Path("gpt2.plan.yaml").write_text("precious")
    before = files()
    process = subprocess.Popen(
        [COMMAND[0], "-X", "importtime", *COMMAND[1:], "solve", str(ROOT / "examples" / "gpt2.yaml"), "--budget=18GB"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    assert any(moment in line for line in process.stderr)  # reads up to the first module of that package
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    said = [line for line in err.splitlines() if not line.startswith("import time:")]
    assert (130, "", "planner: error: interrupted") == (process.returncode, out, said[-1])
    assert all(line.startswith("planner: ") for line in said)
    assert before == files()


def solving(*options: str, code: str = "") -> "subprocess.Popen[str]":
    """A search that would go on for minutes: for a plan of GPT-2 that is proven to the last nanosecond."""
    return subprocess.Popen(
        [
            *(COMMAND[0], "-c", code + COMMAND[2], "solve", str(ROOT / "examples" / "gpt2.yaml"), "--budget=18GB"),
            *("--gap=0", "--time-limit=600", *options),
        ],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def interrupted(process: "subprocess.Popen[str]", moment: str) -> tuple[int, str, str]:
    """The exit status and what is printed from when the moment is reported, and the process is interrupted, on."""
    assert process.stderr is not None
    assert any(re.search(moment, line) for line in process.stderr)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


PROVEN = "can add less than [1-9]"  # the decomposition has answered


@pytest.mark.parametrize("moment", ["looking for the cheapest plan", PROVEN])
def test_an_interrupted_solver_shows_its_best_plan_and_writes_none(moment: str) -> None:
    Path("gpt2.plan.yaml").write_text("precious")
    before = files()

    status, out, err = interrupted(solving("--json"), moment)

    found = json.loads(out)
    assert (130, "planner: error: interrupted") == (status, err.splitlines()[-1])
    assert (True, None) == (found["interrupted"], found["plan"])
    assert 0 < found["predicted_peak_bytes"] <= found["budget_bytes"]
    assert found["added_bound_s"] <= found["added_s"]
    if moment == PROVEN:
        assert 0 < found["added_bound_s"]
        assert found["recompute_s"] < min(row["recompute_s"] for row in found["baselines"] if row["fits"])
    assert before == files()


def test_a_second_interrupt_ends_whatever_the_first_began() -> None:
    code = (
        "import sys, time\n"
        "import planner.planning\n"
        "def make_plan(*_, **__):\n"
        "    print('making a plan', file=sys.stderr, flush=True)\n"
        "    while True:\n"
        "        try:\n"
        "            time.sleep(600)\n"
        "        except KeyboardInterrupt:\n"
        "            pass\n"
        "planner.planning.make_plan = make_plan\n"
    )
    process = solving(code=code)
    assert process.stderr is not None
    assert any("looking for" in line for line in process.stderr)
    process.send_signal(signal.SIGINT)

    status, out, err = interrupted(process, "making a plan")

    assert (130, "", "planner: error: interrupted\n") == (status, out, err)


def interrupt(*_: Any, **__: Any) -> Any:
    raise KeyboardInterrupt


@pytest.mark.parametrize("form", [(), ("--json",), ("-o", "-")])
def test_what_is_known_when_the_solver_is_interrupted(
    spec: str, form: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    from planner.solving import search

    limits = peaks(spec)
    before = files()
    monkeypatch.setattr(search, "run", interrupt)
    fits, too_little = (
        run("solve", spec, "--budget", f"{limits['every block'] + extra_bytes}B", *form) for extra_bytes in (0, -1)
    )

    for result in (fits, too_little):
        assert (130, "planner: error: interrupted") == (result.exit_code, result.stderr.splitlines()[-1])
    assert before == files()
    if form == ("-o", "-"):
        assert ("", "") == (fits.stdout, too_little.stdout)
    elif form == ("--json",):
        found, nothing = json.loads(fits.stdout), json.loads(too_little.stdout)
        assert (True, None, "feasible", 1.0) == tuple(found[key] for key in ("interrupted", "plan", "status", "gap"))
        assert limits["every block"] == found["predicted_peak_bytes"]
        assert (True, None, "unknown") == tuple(nothing[key] for key in ("interrupted", "plan", "status"))
    else:
        assert fits.stdout.startswith("interrupted: the best plan found so far; not written")
        assert "\nPlan       not written\n" in fits.stdout
        assert "no plan adds less than 0 ms (gap 100%, " in fits.stdout
        (line,) = too_little.stdout.splitlines()
        assert line.startswith("interrupted: ")
        assert line.endswith("no plan that fits was found so far")


def test_an_interrupted_rehearsal_shows_the_plan_that_was_rehearsed(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from planner.commands import solve

    budget = f"{peaks(spec)['selective']}B"
    undisturbed = json.loads(run("solve", spec, "--budget", budget, "--json").stdout)
    Path("model.plan.yaml").unlink()
    monkeypatch.setattr(solve, "_rehearse", interrupt)

    found = json.loads(run("solve", spec, "--budget", budget, "--json").stdout)

    assert (True, None) == (found["interrupted"], found["plan"])
    assert undisturbed["decisions"] == found["decisions"]
    assert not Path("model.plan.yaml").exists()


@pytest.mark.parametrize("arguments", [("solve", "--budget", "1GB", "-o"), ("trace", "--graph")])
def test_no_command_writes_over_the_spec_that_it_reads(spec: str, arguments: tuple[str, ...]) -> None:
    before = Path(spec).read_text()

    result = run(arguments[0], spec, *arguments[1:], f"./{spec}")

    assert (2, before) == (result.exit_code, Path(spec).read_text())
    assert f"planner: error: {spec}: is what was read, and would be lost; name another file\n" == result.stderr


def test_the_list_of_commands_says_what_each_is_for_without_cutting_it_off() -> None:
    lines = run("--help").stdout.partition("Commands:")[2].split("\n")
    assert not [line for line in lines if line.endswith("...")]


# ---- the README


def readme_command(name: str) -> str:
    text = (ROOT / "README.md").read_text()
    found = re.search(rf"^<!-- command: {name} -->\n```\w*\n(.*?)\n```$", text, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def test_the_readme_has_its_two_commands() -> None:
    assert "./dev/env planner solve examples/llama-3-8b.yaml --budget 40GB" == readme_command("run")
    assert "./dev/env pytest" == readme_command("test")


@pytest.mark.slow
def test_the_readme_shows_what_the_command_prints() -> None:
    arguments = readme_command("run").split()[2:]
    result = run(*[str(ROOT / a) if a.startswith("examples/") else a for a in arguments])
    assert 0 == result.exit_code
    sample = (ROOT / "README.md").read_text()
    # From there on the report has times, and which of several equally good plans it is.
    for line in result.stdout.partition("Solver")[0].splitlines():
        assert line in sample


def rows_of_techniques(text: str) -> set[str]:
    """The rows of tables of techniques, without their numbers and widths; how good solved plans are depends on time."""
    lines = [line for line in text.splitlines() if line.endswith(("traced", "closed")) and "plan" not in line]
    return {" ".join(line.split()[1:]) for line in lines}


@pytest.mark.slow
def test_the_page_on_compare_shows_what_the_command_prints() -> None:
    result = run("compare", str(ROOT / "examples/llama-3-8b.yaml"), "--budget", "40GB", "--time-limit", "1")
    assert 0 == result.exit_code
    printed = rows_of_techniques(result.stdout)
    assert 30 == len(printed)
    assert printed <= rows_of_techniques((ROOT / "docs/compare.md").read_text())
