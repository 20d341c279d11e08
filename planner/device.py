"""Device profiles: what one accelerator can hold and do, with the source of every number.

The numbers live in ``profiles/*.yaml``. A spec may also describe a device itself, or name a profile file of
its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import Any

from planner.errors import DeviceError, UnitError
from planner.units import as_bytes, parse_bytes
from planner.validation import check, did_you_mean
from planner.yaml_source import SourcedDocument, load_yaml

DEFAULT_DEVICE = "h100-80gb"
_ASSUMED = f"assumed from {DEFAULT_DEVICE}"  # the source of what a description leaves out

_LONGEST_NAME = 100
_PROFILES = Path(__file__).with_name("profiles")
_PROFILE_SUFFIXES = (".yaml", ".yml")


# Written rates are rounded, so neighbours may contradict each other by this much.
_ROUNDING = 1.001


# What is marketed as so many GB is at most so many GiB.
_GIB_PER_GB = 2**30 / 10**9


class Kind(StrEnum):
    """What runs at the same rate: a profile may have a measured curve for each."""

    PRODUCT = "product"
    CONVOLUTION = "convolution"
    CONVOLUTION_BACKWARD = "convolution_backward"
    ATTENTION = "attention"
    ATTENTION_BACKWARD = "attention_backward"
    CAUSAL_ATTENTION = "causal_attention"
    CAUSAL_ATTENTION_BACKWARD = "causal_attention_backward"
    ELEMENTWISE = "elementwise"
    EXPONENTIAL = "exponential"  # elementwise, but as much arithmetic as traffic
    COPY = "copy"
    FILL = "fill"
    RANDOM = "random"
    REDUCTION = "reduction"
    SOFTMAX = "softmax"
    SOFTMAX_BACKWARD = "softmax_backward"
    SAFE_SOFTMAX = "safe_softmax"  # the form that unfused attention takes, which looks for rows without any score
    LAYER_NORM = "layer_norm"
    LAYER_NORM_BACKWARD = "layer_norm_backward"
    BATCH_NORM = "batch_norm"
    BATCH_NORM_BACKWARD = "batch_norm_backward"
    POOLING = "pooling"
    GATHER = "gather"
    SCATTER = "scatter"
    OPTIMIZER = "optimizer"


# Their curves say FLOPs per second by FLOPs per byte moved, the others bytes per second by bytes moved.
ARITHMETIC = frozenset(
    {
        Kind.PRODUCT,
        Kind.CONVOLUTION,
        Kind.CONVOLUTION_BACKWARD,
        Kind.ATTENTION,
        Kind.ATTENTION_BACKWARD,
        Kind.CAUSAL_ATTENTION,
        Kind.CAUSAL_ATTENTION_BACKWARD,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RateCurve:
    """Measured rates of one kind in one dtype, by what they depend on.

    Attributes:
        places: ascending; of a kind in `ARITHMETIC` FLOPs per byte moved, else bytes moved.
        rates_per_s: at each place; of a kind in `ARITHMETIC` FLOPs per second, else bytes per second. With equal
            bytes, a later place never takes less time than an earlier one.
    """

    places: tuple[float, ...]
    rates_per_s: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProfile:
    """One accelerator and its link to the host.

    Attributes:
        name: The profile's name, or "custom" for a device described in a spec.
        memory_bytes: Device memory, as marketed: drivers report somewhat more, the CUDA context takes
            somewhat less.
        peak_flops_per_s: Dense matrix rates by dtype name. "float32" is with TF32 off; "tf32" has its own
            key.
        memory_bytes_per_s: Peak device-memory bandwidth.
        host_link_bytes_per_s: What copies to or from pinned host memory reach, in each direction.
        host_memory_bytes: Memory of the host, for each of its devices; 0 for no offloading.
        matmul_efficiency: The fraction of the peak rate that large matrix products reach.
        attention_efficiency: The same for fused attention kernels.
        bandwidth_efficiency: The fraction of the peak bandwidth that streaming kernels reach.
        launch_s: From the end of one small kernel to the start of the next.
        rates: Measured rates by kind and dtype name, which win over the efficiencies; mostly empty.
        reference_s: What two fixed calls took when the rates were measured, by name: they tell how fast the machine is
            at another time (`planner.runtime.profiling.reference`). Empty without measured rates.
        sources: Where each number comes from, by its key in the profile file.
        usable_memory_bytes: What the driver says a process can have; None where nobody has said.
    """

    name: str
    memory_bytes: int
    peak_flops_per_s: Mapping[str, float]
    memory_bytes_per_s: float
    host_link_bytes_per_s: float
    host_memory_bytes: int
    matmul_efficiency: float
    attention_efficiency: float
    bandwidth_efficiency: float
    launch_s: float
    sources: Mapping[str, str]
    usable_memory_bytes: int | None = None
    rates: Mapping[Kind, Mapping[str, RateCurve]] = field(default_factory=dict)
    reference_s: Mapping[str, float] = field(default_factory=dict)

    @property
    def assumed_rates(self) -> tuple[str, ...]:
        """The keys of what tells devices apart in speed, and of the host's memory, that the description left out."""
        return tuple(key for key in _RATE_KEYS if self.sources.get(key) == _ASSUMED)

    def host_budget(self, asked: str | int | None) -> int:
        """Bytes of host memory that a plan may use.

        Args:
            asked: bytes, or text with a unit; 0 for none, with or without one. None for half of the host's memory,
                which is what the runtime allows.

        Raises:
            UnitError: the text cannot be read, or the number is negative or not whole.
        """
        return self.host_memory_bytes // 2 if asked is None else as_bytes(asked, least=0)


# The keys that a device described in a spec may leave out.
_RATE_KEYS = ("peak_flops_per_s", "memory_bytes_per_s", "host_link_bytes_per_s", "host_memory")
_ASSUMED_KEYS = (
    *_RATE_KEYS,
    "matmul_efficiency",
    "attention_efficiency",
    "bandwidth_efficiency",
    "launch_s",
)


def device_names() -> tuple[str, ...]:
    """The names of the profiles that come with the planner, sorted."""
    return tuple(sorted(path.stem for path in _PROFILES.glob("*.yaml")))


def load_device(
    device: str | Mapping[str, Any],
    *,
    source: SourcedDocument | None = None,
    directory: str | Path = ".",
) -> DeviceProfile:
    """The profile that a name, a profile file or a mapping describes.

    A mapping needs only ``memory``. What it leaves out is taken from the H100-80GB profile, and its sources
    say so.

    Args:
        device: A name from `device_names`, the path of a profile file (it ends in .yaml), or a mapping with
            the keys of one.
        source: The file in which ``device`` stands under the key "device"; errors then point into it.
        directory: Where relative paths start.

    Raises:
        DeviceError: There is no such device, or its description does not fit.
    """
    if not isinstance(device, str):
        return _custom_device(device, source)
    if device.lower().endswith(_PROFILE_SUFFIXES):
        path = Path(directory) / device
        try:
            return _checked(load_yaml(path, error_type=DeviceError), default_name=path.stem)
        except DeviceError as error:
            if source is None or error.line is not None:
                raise
            raise source.error(str(error), ("device",), error_type=DeviceError) from None
    if device in device_names():
        # Not held against the schema, which takes longer than all else: tests hold every profile of ours.
        return _build(load_yaml(_PROFILES / f"{device}.yaml", error_type=DeviceError), default_name=device)
    place = source or SourcedDocument(data=None, lines={}, path="device")
    raise place.error(
        f"unknown device {device!r}",
        ("device",) if source else (),
        hint=did_you_mean(device, device_names(), plural="known devices"),
        error_type=DeviceError,
    )


def _custom_device(device: Mapping[str, Any], source: SourcedDocument | None) -> DeviceProfile:
    if source is None:
        return _checked(SourcedDocument(data=dict(device), lines={}, path="device"), default_name="custom")
    inside = {key[1:]: position for key, position in source.lines.items() if key[:1] == ("device",)}
    document = SourcedDocument(data=dict(device), lines=inside, path=source.path)
    try:
        return _checked(document, default_name="custom")
    except DeviceError as error:
        key = f"device.{error.key}" if error.key else "device"
        raise DeviceError(
            error.message, path=error.path, line=error.line, column=error.column, key=key, hint=error.hint
        ) from None


def _checked(document: SourcedDocument, *, default_name: str) -> DeviceProfile:
    check(document, "device", error_type=DeviceError)
    return _build(document, default_name=default_name)


def _build(document: SourcedDocument, *, default_name: str) -> DeviceProfile:
    data: dict[str, Any] = document.data  # type: ignore[assignment]  # the schema says so
    name = data.get("name", default_name)
    if not name.isprintable() or len(name) > _LONGEST_NAME:  # it is part of texts, pages and the plan
        message = f"expected a name of one line and at most {_LONGEST_NAME} characters, found {name[:50]!r}"
        raise document.error(message, ("name",), error_type=DeviceError)
    sizes: dict[str, int] = {}
    for key, least in (("memory", 1), ("usable_memory", 1), ("host_memory", 0)):
        try:
            if key in data:
                sizes[key] = parse_bytes(data[key], least=least)
        except UnitError as error:
            raise document.error(str(error), (key,), error_type=DeviceError) from None
    if sizes.get("usable_memory", 0) > sizes["memory"] * _GIB_PER_GB:
        message = f"expected no more than the memory of {data['memory']}, found {data['usable_memory']}"
        raise document.error(message, ("usable_memory",), error_type=DeviceError)
    sources = dict(data.get("sources", {}))
    left_out = [key for key in _ASSUMED_KEYS if key not in data]
    if left_out:
        default = load_device(DEFAULT_DEVICE)
        sizes.setdefault("host_memory", default.host_memory_bytes)
        data = {**{key: getattr(default, key) for key in left_out if key != "host_memory"}, **data}
        sources |= dict.fromkeys(left_out, _ASSUMED)
    return DeviceProfile(
        name=name,
        memory_bytes=sizes["memory"],
        peak_flops_per_s={dtype: float(rate) for dtype, rate in data["peak_flops_per_s"].items()},
        memory_bytes_per_s=float(data["memory_bytes_per_s"]),
        host_link_bytes_per_s=float(data["host_link_bytes_per_s"]),
        host_memory_bytes=sizes["host_memory"],
        matmul_efficiency=float(data["matmul_efficiency"]),
        attention_efficiency=float(data["attention_efficiency"]),
        bandwidth_efficiency=float(data["bandwidth_efficiency"]),
        launch_s=float(data["launch_s"]),
        sources=sources,
        usable_memory_bytes=sizes.get("usable_memory"),
        rates={
            Kind(kind): {dtype: _curve(document, Kind(kind), dtype) for dtype in curves}
            for kind, curves in data.get("rates", {}).items()
        },
        reference_s={name: float(seconds) for name, seconds in data.get("reference_s", {}).items()},
    )


def point_keys(kind: Kind) -> tuple[str, str]:
    """The keys of one point of the kind's curve in a profile file: the place, and the rate there."""
    return ("flops_per_byte", "flops_per_s") if kind in ARITHMETIC else ("bytes", "bytes_per_s")


def _curve(document: SourcedDocument, kind: Kind, dtype: str) -> RateCurve:
    data: Any = document.data
    points = data["rates"][kind][dtype]
    place_key, rate_key = point_keys(kind)
    for index, (before, after) in enumerate(pairwise(points), start=1):
        if after[place_key] <= before[place_key]:
            problem = f"expected {place_key} above the {before[place_key]:g} before, found {after[place_key]:g}"
        elif after[place_key] / after[rate_key] * _ROUNDING < before[place_key] / before[rate_key]:
            problem = (
                f"at {rate_key} {after[rate_key]:g} this would take less time than the smaller point before; "
                "measure again"
            )
        else:
            continue
        raise document.error(problem, ("rates", str(kind), dtype, index), error_type=DeviceError)
    return RateCurve(
        places=tuple(float(point[place_key]) for point in points),
        rates_per_s=tuple(float(point[rate_key]) for point in points),
    )
