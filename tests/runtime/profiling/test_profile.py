"""`planner profile` with a stopwatch of the tests: what is written, refused, and left behind."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from click.testing import CliRunner, Result

import planner
from planner.cli import main
from planner.device import Kind, load_device
from planner.errors import DeviceError
from planner.graph import ops
from planner.runtime.profiling import measure, run
from planner.runtime.profiling.probes import Pool, Probe, Watch, probes
from planner.runtime.profiling.timing import CpuStopwatch
from planner.tracing import Kernels, trace_module

CPU = torch.device("cpu")
ELEMENTS = 2**14


class EvenStopwatch:
    """Every run takes as long."""

    how = "a stopwatch of the tests"

    def __init__(self, seconds: float = 0.001) -> None:
        self._seconds = seconds

    def seconds(self, run: Callable[[], object]) -> float:
        run()
        return self._seconds


class UnevenStopwatch(EvenStopwatch):
    """Every other run takes three times as long."""

    def __init__(self) -> None:
        super().__init__()
        self._count = 0

    def seconds(self, run: Callable[[], object]) -> float:
        self._count += 1
        return super().seconds(run) * (3 if self._count % 7 < 3 else 1)


def small_probes(device: torch.device, dtype: torch.dtype, *, is_quick: bool) -> tuple[Probe, ...]:
    return (
        Probe(name="product", kind=Kind.PRODUCT, shapes=((64, 64), (64, 64)), run=torch.mm),
        Probe(name="elementwise", kind=Kind.ELEMENTWISE, shapes=((ELEMENTS,), (ELEMENTS,)), run=torch.mul),
        Probe(
            name="gelu",
            kind=Kind.EXPONENTIAL,
            shapes=((ELEMENTS,),),
            run=torch.nn.functional.gelu,
            backward=Kind.EXPONENTIAL,
        ),
    )


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Little to measure, no clock, and a directory of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(measure, "probes", small_probes)
    monkeypatch.setattr(measure, "optimizer_elements", lambda _: (768 * 768,))
    monkeypatch.setattr(measure, "_LINK_BYTES", (2**20,))
    monkeypatch.setattr(run, "CpuStopwatch", lambda _: EvenStopwatch())


def invoke(*arguments: str) -> Result:
    result = CliRunner().invoke(main, ["profile", "--device", "cpu", "--quick", *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_the_profile_loads_under_its_name_and_every_number_has_a_source(small: None) -> None:
    assert 0 == invoke("-o", "mine.yaml").exit_code
    device = load_device("mine.yaml")
    assert "mine" == device.name
    assert {Kind.PRODUCT, Kind.ELEMENTWISE, Kind.EXPONENTIAL, Kind.OPTIMIZER} == set(device.rates)
    assert {"float32", "bfloat16"} == set(device.rates[Kind.PRODUCT])
    data = yaml.safe_load(Path("mine.yaml").read_text())
    assert set(data) - {"name", "sources"} == set(data["sources"])
    assert all(torch.__version__ in data["sources"][key] for key in ("rates", "launch_s", "reference_s"))
    assert 0 == device.host_memory_bytes


def test_rates_are_the_counted_work_over_the_time_without_that_of_an_empty_call(small: None) -> None:
    run.profile_machine(Path("mine.yaml"), device="cpu", dtypes=("float32",), is_quick=True, stopwatch=EvenStopwatch())
    # Every run takes 1 ms, the empty call's too: a tenth of a call counts. Runs of 1 ms are repeated 3 times a turn.
    (point,) = yaml.safe_load(Path("mine.yaml").read_text())["rates"]["product"]["float32"]
    assert pytest.approx(2 * 64**3 / (3 * 64**2 * 4), rel=1e-3) == point["flops_per_byte"]
    assert pytest.approx(2 * 64**3 / (0.1 * 0.001 / 3), rel=1e-3) == float(point["flops_per_s"])


def test_a_plan_can_be_solved_for_the_measured_machine(small: None) -> None:
    invoke("-o", "mine.yaml", "--dtype", "float32")
    graph = trace_module(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU()), (torch.zeros(4, 8),))
    plan = planner.solve(graph, budget="1GB", device=load_device("mine.yaml")).plan
    assert ("mine", True) == (plan.device, plan.predicted.step_s > 0)


def test_json_has_the_profile_and_how_it_came_about(small: None) -> None:
    found = json.loads(invoke("-o", "mine.yaml", "--json", "--threads", "1", "--dtype", "float32").stdout)
    assert ("mine.yaml", "mine", 0, []) == (found["path"], found["profile"]["name"], found["spread"], found["skipped"])
    assert "1 thread" in found["machine"]


def test_threads_are_as_many_as_asked_for_meanwhile_and_as_before_afterwards(
    small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def refused(*_: Any) -> None:
        seen.append(torch.get_num_threads())
        raise DeviceError("enough", path="the test")

    monkeypatch.setattr(run, "measure", refused)
    before = torch.get_num_threads()
    invoke("-o", "mine.yaml", "--threads", str(before + 1))
    assert ([before + 1], before) == (seen, torch.get_num_threads())


def test_a_machine_too_noisy_to_trust_is_said_to_be(small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ("-o", "mine.yaml", "--dtype", "float32")
    assert "too noisy" not in invoke(*arguments).stderr
    monkeypatch.setattr(run, "CpuStopwatch", lambda _: UnevenStopwatch())
    assert "warning: too noisy to trust" in invoke(*arguments).stderr


def test_what_the_machine_refuses_is_skipped_and_named(small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> torch.Tensor:
        raise RuntimeError("not implemented for 'Half'\nand more")

    def with_refused(*arguments: Any, **keywords: Any) -> tuple[Probe, ...]:
        odd = (
            Probe(name="odd one", kind=Kind.ELEMENTWISE, shapes=((4,),), run=refuse),
            Probe(name="other one", kind=Kind.FILL, shapes=((4,),), run=torch.neg),
        )
        return (*small_probes(*arguments, **keywords), *odd)

    monkeypatch.setattr(measure, "probes", with_refused)
    said = invoke("-o", "mine.yaml", "--dtype", "float32").stderr
    assert "planner: skipped: odd one in float32: not implemented for 'Half'\n" in said
    assert "planner: skipped: other one in float32: no fill op, but aten.neg.default\n" in said


def test_without_any_product_there_is_no_profile(small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "probes", lambda *_, **__: ())
    result = invoke("-o", "mine.yaml")
    assert (2, False) == (result.exit_code, Path("mine.yaml").exists())
    assert "no product could be timed" in result.stderr


def test_a_clock_too_coarse_to_tell_anything_is_an_error(small: None) -> None:
    with pytest.raises(DeviceError, match="too coarse"):
        run.profile_machine(Path("mine.yaml"), device="cpu", is_quick=True, stopwatch=EvenStopwatch(0.0))
    assert not Path("mine.yaml").exists()


def test_an_interrupt_leaves_the_file_as_it_was(small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(EvenStopwatch):
        def seconds(self, run: Callable[[], object]) -> float:
            raise KeyboardInterrupt

    monkeypatch.setattr(run, "CpuStopwatch", lambda _: Interrupted())
    Path("mine.yaml").write_text("as it was")
    result = invoke("-o", "mine.yaml")
    assert (130, "as it was") == (result.exit_code, Path("mine.yaml").read_text())
    assert ["mine.yaml"] == [path.name for path in Path().iterdir()]


@pytest.mark.parametrize(
    ("complaint", "arguments"),
    [
        ("must end in .yaml", ["-o", "mine.txt"]),
        ("cannot be written: there is no folder absent", ["-o", "absent/mine.yaml"]),
        ("is not one of", ["--dtype", "float8"]),
        ("is not in the range", ["--threads", "0"]),
    ],
)
def test_a_bad_option_is_refused_before_anything_is_measured(
    complaint: str, arguments: list[str], small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "measure", lambda *_: pytest.fail("it measured"))
    result = invoke(*arguments)
    assert (2, True) == (result.exit_code, complaint in result.stderr)


@pytest.mark.skipif(torch.cuda.is_available(), reason="about machines without CUDA")
def test_cuda_is_refused_where_there_is_none(small: None) -> None:
    result = CliRunner().invoke(main, ["profile", "--device", "cuda", "-o", "mine.yaml"])
    assert 2 == result.exit_code
    assert "there is no CUDA device here; use --device cpu" in result.stderr


# ---- what is timed


def test_a_call_counts_bytes_and_flops_as_a_trace_does() -> None:
    entering = torch.zeros(4, 16)
    graph = trace_module(torch.nn.Linear(16, 8, bias=False), (entering,), kernels=Kernels.CPU)
    with Watch() as watch:
        torch.mm(entering, torch.zeros(8, 16).t())
    traced = next(op for op in ops(graph) if op.name == "aten.mm.default")
    watched = watch.main_op(Kind.PRODUCT)
    assert watched is not None
    assert (256 + 512, 128, 2 * 4 * 8 * 16) == (watched.read_bytes, watched.write_bytes, watched.flops)
    assert (traced.read_bytes, traced.write_bytes, traced.flops) == (
        watched.read_bytes,
        watched.write_bytes,
        watched.flops,
    )


def test_the_probes_of_a_cpu_dispatch_what_they_are_meant_to_and_cover_every_kind_but_the_optimizer() -> None:
    pool = Pool(torch.float32, CPU)
    found = probes(CPU, torch.float32, is_quick=True)
    for probe in found:
        if sum(torch.Size(shape).numel() for shape in probe.shapes) > 2**22:
            continue  # the same calls on more
        inputs = [pool.cut(shape).detach().requires_grad_() for shape in probe.shapes]
        with Watch() as forward:
            output = probe.run(*inputs)
        assert forward.main_op(probe.kind) is not None, probe.name
        if probe.backward is not None:
            with Watch() as backward:
                torch.autograd.grad(output, inputs, torch.ones_like(output))
            assert backward.main_op(probe.backward) is not None, probe.name
    assert set(Kind) - {Kind.OPTIMIZER} == {kind for probe in found for kind in (probe.kind, probe.backward) if kind}


def test_successive_cuts_of_a_pool_do_not_overlap() -> None:
    pool = Pool(torch.float32, CPU)
    first, second = pool.cut((100,)), pool.cut((100,))
    assert first.data_ptr() + first.nbytes <= second.data_ptr()
    assert (3, 5) == pool.cut((3, 5)).shape


def test_one_thread_is_timed_by_processor_time_and_several_by_the_clock() -> None:
    assert ["processor time", "wall clock"] == [CpuStopwatch(threads).how for threads in (1, 2)]
