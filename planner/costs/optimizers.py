"""What optimizers hold per parameter, and how parameters divide over ranks. Plain arithmetic that needs no op graph."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

# Block-wise 8-bit states: one byte an element, one float32 scale per 256 elements (bitsandbytes, Dettmers
# et al. 2022).
_QUANTIZED_STATE_BYTES = 1 + 4 / 256


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerCost:
    """Bytes an optimizer holds, and adds during its step, per trainable element of `element_bytes` bytes."""

    states: float  # copies of the parameters, in the parameters' dtype
    state_bytes: float = 0.0  # bytes per element besides
    transients: float = 0.0  # copies of the parameters alive at once within the step


# Transients: the default multi-tensor ("foreach") AdamW keeps the square roots of the second moments of all
# parameters at once (torch/optim/adam.py, exp_avg_sq_sqrt); SGD with momentum updates in place; 8-bit and
# Lion kernels are fused.
OPTIMIZER_COSTS: Mapping[str, OptimizerCost] = {
    "adamw": OptimizerCost(states=2, transients=1),
    "adam": OptimizerCost(states=2, transients=1),
    "adamw-8bit": OptimizerCost(states=0, state_bytes=2 * _QUANTIZED_STATE_BYTES),
    "adam-8bit": OptimizerCost(states=0, state_bytes=2 * _QUANTIZED_STATE_BYTES),
    # Paged states are in unified memory, outside of PyTorch's allocator, and leave the device when it is full.
    # Source: bitsandbytes, functional.py, `get_paged` (cudaMallocManaged).
    "paged-adamw": OptimizerCost(states=0),
    "paged-adamw-8bit": OptimizerCost(states=0),
    "lion": OptimizerCost(states=1, transients=1),
    # Of the blocks' matrices; what else there is has AdamW. Source: torch/optim/_muon.py.
    "muon": OptimizerCost(states=1),
    "sgd": OptimizerCost(states=0),
    "sgd-momentum": OptimizerCost(states=1),
    "adafactor": OptimizerCost(states=0, transients=1),
    "none": OptimizerCost(states=0),
}


def padded_elements(shape: tuple[int, ...], shards: int) -> int:
    """Elements of a parameter whose first dimension is padded to equal shards.

    Source: torch/distributed/fsdp/_fully_shard/_fsdp_param.py, `_init_sharded_param`: shards are chunks of the
    first dimension, and each rank holds as much as the largest.
    """
    rows = shape[0] if shape else 1
    return share(rows, shards) * shards * prod(shape[1:])


def share(size_bytes: int, shards: int) -> int:
    """The largest of equal shares, rounded up."""
    return -(-size_bytes // shards)


def factored_elements(shape: tuple[int, ...]) -> int:
    """Elements of Adafactor's second moments: a row and a column per matrix (Shazeer and Stern 2018)."""
    if len(shape) < 2:
        return prod(shape)
    return prod(shape[:-2]) * (shape[-2] + shape[-1])
