"""Static memory per device: parameters, gradients, optimizer state, what FSDP gathers. Plain arithmetic, no
torch.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import prod

from planner.costs.optimizers import OPTIMIZER_COSTS, factored_elements, padded_elements, share
from planner.graph import StaticMemory
from planner.units import DTYPE_BYTES

# Sharded data-parallel training gathers the block in use and prefetches the next one.
# Source: FSDP2 (torch/distributed/fsdp/_fully_shard), one all-gather ahead by default.
GATHERED_BLOCKS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterInfo:
    """One parameter, shared ones once."""

    fqn: str
    shape: tuple[int, ...]
    is_trainable: bool
    block: str | None  # the repeated block it lies in; None for the root


def static_memory(
    parameters: Iterable[ParameterInfo],
    *,
    buffer_bytes: int,
    parameter_dtype: str,
    compute_dtype: str,
    optimizer: str,
    fsdp: int,
    ddp: int = 1,
) -> StaticMemory:
    """Bytes per device for the given parameters.

    Args:
        parameters: every parameter once.
        buffer_bytes: all buffers; they are not sharded.
        parameter_dtype: dtype the parameters, their gradients and optimizer states are stored in.
        compute_dtype: dtype that FSDP gathers in.
        optimizer: a key of `OPTIMIZER_COSTS`.
        fsdp: data-parallel shards; everything static is divided by it.
        ddp: replicas that hold everything, and reduce gradients in buckets.
    """
    table = tuple(parameters)
    cost = OPTIMIZER_COSTS[optimizer]
    width = DTYPE_BYTES[parameter_dtype]
    elements = sum(padded_elements(item.shape, fsdp) for item in table) // fsdp
    trainable = sum(padded_elements(item.shape, fsdp) for item in table if item.is_trainable) // fsdp
    states = trainable * (cost.states * width + cost.state_bytes)
    if optimizer == "adafactor":
        factored = sum(factored_elements(item.shape) for item in table if item.is_trainable)
        states = share(factored * DTYPE_BYTES["float32"], fsdp)
    return StaticMemory(
        parameters_bytes=elements * width + buffer_bytes,
        gradients_bytes=trainable * width,
        optimizer_bytes=int(states),
        optimizer_transient_bytes=int(trainable * width * cost.transients),
        unsharded_bytes=_gathered_elements(table) * DTYPE_BYTES[compute_dtype] if fsdp > 1 else 0,
        # Source: torch/csrc/distributed/c10d/reducer.cpp: flat buckets as large as all gradients, made with the
        # wrapper and kept. Unless gradient_as_bucket_view is set, gradients are tensors of their own beside them.
        buckets_bytes=trainable * width if ddp > 1 else 0,
    )


def with_optimizer(static: StaticMemory, optimizer: str, *, parameter_dtype: str) -> StaticMemory:
    """The same static memory under another optimizer, one whose states follow from the count of elements alone.

    Args:
        static: of the step.
        optimizer: a key of `OPTIMIZER_COSTS`, not "adafactor", whose states depend on shapes.
        parameter_dtype: dtype of the parameters and their gradients.
    """
    assert optimizer != "adafactor"
    cost, width = OPTIMIZER_COSTS[optimizer], DTYPE_BYTES[parameter_dtype]
    trainable = static.gradients_bytes // width
    return replace(
        static,
        optimizer_bytes=int(trainable * (cost.states * width + cost.state_bytes)),
        optimizer_transient_bytes=int(trainable * width * cost.transients),
    )


def _gathered_elements(parameters: tuple[ParameterInfo, ...]) -> int:
    """Elements gathered at once: the root unit, which stays, and the largest blocks in flight."""
    blocks: dict[str, int] = {}
    for item in parameters:
        if item.block is not None:
            blocks[item.block] = blocks.get(item.block, 0) + prod(item.shape)
    root = sum(prod(item.shape) for item in parameters if item.block is None)
    return root + sum(sorted(blocks.values(), reverse=True)[:GATHERED_BLOCKS])
