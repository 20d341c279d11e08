"""Seconds per op: from measured rates where the device's profile has them, else the larger of arithmetic and traffic
time, plus the launch. No torch.
"""

from bisect import bisect_right
from math import exp, log

from planner.costs.kinds import counted_bytes, kind_of
from planner.device import ARITHMETIC, DeviceProfile, Kind, RateCurve
from planner.graph import Op

# Ops that read a few rows of a large table; they move what they return, in and out.
_GATHERS = frozenset({"aten.embedding", "aten.index", "aten.gather", "aten.index_select", "aten.slice_scatter"})
_GATHER_PASSES = 2
# A kernel for masked (causal) attention skips the half of the scores that torch's FLOP formula counts.
_CAUSAL_SHARE = 0.5


def op_seconds(op: Op, device: DeviceProfile) -> float:
    """Estimated time of one op on the device; views take none.

    Source: roofline model (Williams, Waterman, Patterson 2009) with the profile's measured or assumed
    efficiencies.
    """
    if op.is_view:
        return 0.0
    measured_s = measured_seconds(op, device)
    if measured_s is not None:
        return device.launch_s + measured_s
    return device.launch_s + max(arithmetic_seconds(op, device), moved_bytes(op) / _bandwidth(device))


def measured_seconds(op: Op, device: DeviceProfile) -> float | None:
    """Time of the op at the rate measured for its kind and dtype, without the launch; None if there is none."""
    if not device.rates:
        return None
    if op.is_opaque:
        return 0.0  # memory without content takes no more than the launch
    kind = kind_of(op)
    curve = device.rates.get(kind, {}).get(op.dtype)
    if curve is None:
        return None
    size_bytes = counted_bytes(op, kind)
    if kind in ARITHMETIC:
        return op.flops / rate_at(curve, op.flops / max(1, size_bytes))
    return size_bytes / rate_at(curve, size_bytes)


def rate_at(curve: RateCurve, place: float) -> float:
    """The rate at a place: on a line between its neighbours where both axes are logarithmic, and constant beyond
    the ends.

    So it lies between two measured rates, and since no measured place takes less time than a smaller one, none does.
    """
    places, rates = curve.places, curve.rates_per_s
    after = bisect_right(places, place)
    if after == 0:
        return rates[0]
    if after == len(places) or places[after - 1] == place:
        return rates[after - 1]
    share = log(place / places[after - 1]) / log(places[after] / places[after - 1])
    return exp((1 - share) * log(rates[after - 1]) + share * log(rates[after]))


def arithmetic_seconds(op: Op, device: DeviceProfile) -> float:
    """Time of the op's FLOPs at the rate of its dtype; without one, at float32's, or else at the lowest there is."""
    if not op.flops:
        return 0.0
    rates = device.peak_flops_per_s
    peak = rates.get(op.dtype) or rates.get("float32") or min(rates.values())
    is_attention = "attention" in op.name
    efficiency = device.attention_efficiency if is_attention else device.matmul_efficiency
    share = _CAUSAL_SHARE if op.is_causal else 1.0
    return share * op.flops / (peak * efficiency)


def moved_bytes(op: Op) -> int:
    """Bytes read and written, once each."""
    if op.name.rpartition(".")[0] in _GATHERS:
        return _GATHER_PASSES * op.write_bytes
    return op.read_bytes + op.write_bytes


def optimizer_seconds(
    parameter_bytes: int, state_bytes: int, gradient_bytes: int, device: DeviceProfile, *, dtype: str = ""
) -> float:
    """Time of an optimizer step, counted as a fused one: parameters and states are read and written, gradients read.

    A measured rate is that of Adam as PyTorch runs it by default, in so many more passes; an optimizer without state
    does elementwise work.

    Args:
        parameter_bytes, state_bytes, gradient_bytes: of the trainable parameters.
        device: the step runs on.
        dtype: of the parameters; without it, no measured rate is looked for.
    """
    size_bytes = 2 * parameter_bytes + 2 * state_bytes + gradient_bytes
    curve = device.rates.get(Kind.OPTIMIZER if state_bytes else Kind.ELEMENTWISE, {}).get(dtype)
    return size_bytes / (_bandwidth(device) if curve is None else rate_at(curve, size_bytes))


def _bandwidth(device: DeviceProfile) -> float:
    return device.memory_bytes_per_s * device.bandwidth_efficiency
