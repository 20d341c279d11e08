"""`planner profile` from end to end: choose, measure, check, write."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import torch

from planner.device import DeviceProfile, load_device
from planner.errors import DeviceError
from planner.files import write_whole
from planner.runtime.profiling.machine import profile_data, this_machine
from planner.runtime.profiling.measure import Settings, measure
from planner.runtime.profiling.timing import CpuStopwatch, CudaStopwatch, Stopwatch
from planner.yaml_source import format_yaml, parse_yaml

_LINE_WIDTH = 120
_CPU_DTYPES = ("float32", "bfloat16")
_CUDA_DTYPES = ("float32", "bfloat16", "float16")

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A profile that was written, and how it came about.

    Attributes:
        profile: as a spec that names the file will have it.
        machine: in words.
        spread: how far the quartiles of repeated times are apart, over their median; of a typical call.
        slowdown: how many times as long as at its best the machine typically took meanwhile.
        skipped: calls that this machine refused, and why.
    """

    path: Path
    profile: DeviceProfile
    machine: str
    spread: float
    slowdown: float
    skipped: tuple[str, ...]


def choose_device(asked: str | None) -> str:
    """The device to measure: what was asked for, or CUDA where there is one.

    Raises:
        DeviceError: CUDA was asked for and there is none.
    """
    has_cuda = torch.cuda.is_available()
    if asked == "cuda" and not has_cuda:
        raise DeviceError("there is no CUDA device here", path="--device", hint="use --device cpu")
    return asked or ("cuda" if has_cuda else "cpu")


def profile_machine(
    path: Path,
    *,
    device: str,
    dtypes: tuple[str, ...] = (),
    threads: int | None = None,
    is_quick: bool = False,
    stopwatch: Stopwatch | None = None,
    report: Report = lambda _: None,
) -> Written:
    """Measure this machine and write its profile, whole or not at all.

    Args:
        path: of the file.
        device: "cpu" or "cuda".
        dtypes: names of those to measure; empty for what the device usually computes in.
        threads: of a CPU; None for as many as torch chose.
        is_quick: fewer sizes and rounds.
        stopwatch: times the calls; None for the device's own.
        report: called with lines of progress.

    Raises:
        DeviceError: not even products run in any of the dtypes.
        PlanFileError: the file cannot be written.
    """
    place = torch.device(device)
    names = dtypes or (_CUDA_DTYPES if device == "cuda" else _CPU_DTYPES)
    with _threads(threads):
        watch = stopwatch or (CudaStopwatch() if device == "cuda" else CpuStopwatch(torch.get_num_threads()))
        settings = Settings(
            device=place, dtypes=tuple(getattr(torch, name) for name in dict.fromkeys(names)), is_quick=is_quick
        )
        measured = measure(settings, watch, report)
        machine = this_machine(place)
    data = profile_data(measured, machine, name=path.stem, how=watch.how, date=date.today().isoformat())
    text = format_yaml(data, width=_LINE_WIDTH)
    profile = load_device(parse_yaml(text, str(path), error_type=DeviceError).data)  # type: ignore[arg-type]
    write_whole(path, text)
    return Written(
        path=path,
        profile=profile,
        machine=f"{machine.host}: {machine.device}, {machine.software}",
        spread=measured.spread,
        slowdown=measured.typical_slowdown,
        skipped=measured.skipped,
    )


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
