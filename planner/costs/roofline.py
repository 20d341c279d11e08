"""Seconds per op: the larger of arithmetic and traffic time, plus the launch. No torch."""

from planner.device import DeviceProfile
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
    return device.launch_s + max(arithmetic_seconds(op, device), moved_bytes(op) / _bandwidth(device))


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


def optimizer_seconds(parameter_bytes: int, state_bytes: int, gradient_bytes: int, device: DeviceProfile) -> float:
    """Time of a fused optimizer step: parameters and states are read and written, gradients read."""
    return (2 * parameter_bytes + 2 * state_bytes + gradient_bytes) / _bandwidth(device)


def _bandwidth(device: DeviceProfile) -> float:
    return device.memory_bytes_per_s * device.bandwidth_efficiency
