"""The machine at hand, and the profile file made of what was measured on it."""

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from planner import __version__
from planner.device import ARITHMETIC, Kind, point_keys
from planner.runtime.profiling.curves import Point
from planner.runtime.profiling.measure import Measured
from planner.yaml_source import FlowMapping

# Repetitions whose quartiles lie further apart than this are no basis for predictions.
TRUSTED_SPREAD = 0.2
_CPU_INFO = Path("/proc/cpuinfo")
_MIB, _GIGA = 2**20, 1e9
# Streams are at least so long, so that caches do not hold them on most machines.
_STREAM_BYTES = 2**23


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What the numbers are of.

    Attributes:
        device: in words, such as the processor's name.
        memory_bytes: of the device.
        host_memory_bytes: beside it; 0 where the device is the host itself.
        software: versions and settings that rates depend on.
    """

    host: str
    device: str
    is_cuda: bool
    memory_bytes: int
    host_memory_bytes: int
    software: str


def this_machine(device: torch.device) -> Machine:
    """The machine at hand, with its CPU or the CUDA device."""
    memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        return Machine(
            host=platform.node(),
            device=properties.name,
            is_cuda=True,
            memory_bytes=properties.total_memory,
            host_memory_bytes=memory_bytes // torch.cuda.device_count(),
            software=f"torch {torch.__version__}, CUDA {torch.version.cuda}",
        )
    threads = torch.get_num_threads()
    onednn: Any = torch.backends.mkldnn
    return Machine(
        host=platform.node(),
        device=_processor(),
        is_cuda=False,
        memory_bytes=memory_bytes,
        host_memory_bytes=0,
        software=f"torch {torch.__version__}, {threads} thread{'' if threads == 1 else 's'}, oneDNN "
        + ("on" if onednn.enabled and onednn.is_available() else "off"),
    )


def _processor() -> str:
    if _CPU_INFO.exists():
        for line in _CPU_INFO.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def profile_data(measured: Measured, machine: Machine, *, name: str, how: str, date: str) -> dict[str, Any]:
    """What the profile file says, as plain data in the order of its keys.

    Args:
        measured: the rates.
        machine: that they were measured on.
        name: of the profile.
        how: times were taken, in words.
        date: when.
    """
    rates = measured.rates
    peaks = {dtype: max(p.rate_per_s for p in curve) for dtype, curve in rates[Kind.PRODUCT].items()}
    stream = _stream_rate(rates)
    where = f"measured on {machine.host} ({machine.device}; {machine.software}) on {date} by planner {__version__}"
    timed = (
        f"{where}: medians of {measured.rounds} interleaved rounds by {how}, as at the machine's best speed (see "
        f"docs/profile.md); quartiles typically {measured.spread:.0%} apart"
    )
    link = "; ".join(
        f"{size // _MIB} MiB at {rate / _GIGA:.1f} GB/s" for size, rate in measured.link_bytes_per_s.items()
    )
    return {
        "name": name,
        "memory": f"{machine.memory_bytes}B",
        "peak_flops_per_s": peaks,
        "memory_bytes_per_s": stream,
        "host_link_bytes_per_s": _digits(list(measured.link_bytes_per_s.values())[-1]),
        "host_memory": f"{machine.host_memory_bytes}B",
        "matmul_efficiency": 1.0,
        "attention_efficiency": _attention_efficiency(rates, peaks),
        "bandwidth_efficiency": 1.0,
        "launch_s": _digits(measured.launch_s),
        "reference_s": FlowMapping(
            product=_digits(measured.best.product_s), elementwise=_digits(measured.best.elementwise_s)
        ),
        "rates": {
            str(kind): {dtype: [_point(kind, point) for point in curve] for dtype, curve in curves.items()}
            for kind, curves in rates.items()
        },
        "sources": {
            "memory": f"as the driver reports it on {machine.host}" if machine.is_cuda else "as the system reports it",
            "peak_flops_per_s": f"the fastest product of each dtype; {timed}",
            "memory_bytes_per_s": f"elementwise ops on more than {_STREAM_BYTES // _MIB} MiB; {timed}",
            "host_link_bytes_per_s": f"the slower direction of copies of {link}; {timed}"
            if machine.is_cuda
            else f"copies within the machine's memory of {link}, since a CPU has no host beside it; {timed}",
            "host_memory": f"of {machine.host}, shared by its devices"
            if machine.is_cuda
            else "none: a CPU's memory is the host's own, so there is nowhere to offload to",
            "matmul_efficiency": "1, since the rates above were reached",
            "attention_efficiency": f"the fastest fused attention over the fastest product; {timed}",
            "bandwidth_efficiency": "1, since the rate above was reached",
            "launch_s": f"a training step of tiny layers over its ops, what Python and autograd take included; {timed}",
            "reference_s": f"a product and an elementwise op between all measurements, the lowest tenth; {where}",
            "rates": timed,
        },
    }


def _stream_rate(rates: Mapping[Kind, Mapping[str, tuple[Point, ...]]]) -> float:
    """What elementwise ops on large tensors reach, in the first dtype."""
    curve = next(iter(rates[Kind.ELEMENTWISE].values()))
    large = [point.rate_per_s for point in curve if point.place >= _STREAM_BYTES]
    return max(large or [curve[-1].rate_per_s])


def _attention_efficiency(rates: Mapping[Kind, Mapping[str, tuple[Point, ...]]], peaks: Mapping[str, float]) -> float:
    """Of fused attention, forward; that of products where there is none."""
    found = [
        max(point.rate_per_s for point in curve) / peaks[dtype]
        for dtype, curve in rates.get(Kind.ATTENTION, {}).items()
        if dtype in peaks
    ]
    return _digits(min(1.0, max(found))) if found else 1.0


def _point(kind: Kind, point: Point) -> FlowMapping:
    place_key, rate_key = point_keys(kind)
    place = point.place if kind in ARITHMETIC else round(point.place)
    return FlowMapping({place_key: place, rate_key: point.rate_per_s, "spread": point.spread})


def _digits(number: float) -> float:
    return float(f"{number:.4g}")
