"""The memory of a step by phase and part, from a `Run`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from planner.architecture import (
    Architecture,
    Matrix,
    block_parameters,
    embedding_parameters,
    head_parameters,
)
from planner.costs.static import OPTIMIZER_COSTS, factored_elements, padded_elements
from planner.estimation.blocks import Computation, Section, block, embedding, head
from planner.estimation.run import Quantization, Run, Sharding, Step
from planner.estimation.step import Checkpointing, Gathering, Moment, StepParts, moments
from planner.units import DTYPE_BYTES

# Bytes per element of quantized weights. 4 bits and a float32 scale for each 64 elements; with double quantization the
# scales are 8 bits with a float32 of their own for each 256. Int8 has a float32 scale per row, which is nothing.
# Source: QLoRA (arXiv 2305.14314), section 3; bitsandbytes, functional.py, `quantize_4bit` (blocksize 64).
QUANTIZED_BYTES: Mapping[Quantization, float] = {
    Quantization.NF4: 0.5 + 4 / 64,
    Quantization.NF4_DOUBLE: 0.5 + 1 / 64 + 4 / (64 * 256),
    Quantization.INT8: 1.0,
}
_FULLY_SHARDED = frozenset({Sharding.ZERO3, Sharding.FSDP1, Sharding.FSDP2})
_SHARDS_GRADIENTS = _FULLY_SHARDED | {Sharding.ZERO2}
_SHARDS_OPTIMIZER = _SHARDS_GRADIENTS | {Sharding.ZERO1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Static:
    """Bytes on one rank that do not depend on the batch."""

    parameters: int
    master: int
    gradients: int
    optimizer: int
    step_transient: int
    buckets: int
    gathering: Gathering
    constants: int


def computation_of(run: Run) -> Computation:
    """How the blocks of the run compute."""
    shared = run.degrees
    return Computation(
        batch=run.micro_batch,
        length=ceil(run.length / shared.context),
        parameter_dtype=run.parameter_dtype if run.autocast else run.compute_dtype,
        compute_dtype=run.compute_dtype,
        attention=run.attention,
        norm=run.norm,
        activation=run.activation,
        rotary=run.rotary,
        loss=run.loss,
        chunks=run.chunks,
        logits_stay=run.logits_stay,
        gradient_dtype=run.held_gradient_dtype if run.autocast else run.compute_dtype,
        trains_base=run.adapters is None,
        adapters=run.adapters,
        dequantized_dtype=run.compute_dtype if run.quantization is not None else None,
        tensor_parallel=shared.tensor,
        sequence_parallel=shared.sequence,
        dropout=run.dropout,
    )


def sections_of(run: Run) -> tuple[Section, tuple[Section, ...], Section]:
    """Embedding, blocks and head of the run; alike blocks are one object."""
    a, c = run.architecture, computation_of(run)
    one = block(a, c)
    return embedding(a, c), (one,) * a.layers, head(a, c)


def _units(a: Architecture) -> tuple[tuple[Matrix, ...], list[tuple[Matrix, ...]]]:
    root = (*embedding_parameters(a), *head_parameters(a))
    return root, [block_parameters(a, layer) for layer in range(a.layers)]


def static_of(run: Run) -> Static:
    """What the rank holds whatever the batch."""
    a, shared = run.architecture, run.degrees
    root, blocks = _units(a)
    everything = [*root, *(m for one in blocks for m in one)]
    shards = shared.data
    width = DTYPE_BYTES[run.parameter_dtype]

    def share(matrices: Sequence[Matrix], divided: bool) -> int:
        if not divided:
            return sum(m.elements for m in matrices)
        return sum(padded_elements(m.shape, shards) * m.copies for m in matrices) // shards

    is_sharded = run.sharding in _FULLY_SHARDED
    parameters = share(everything, is_sharded)
    trainable = 0 if run.adapters is not None else parameters
    cost = OPTIMIZER_COSTS["sgd-momentum" if run.momentum else run.optimizer.value]
    state_elements = share(everything, run.sharding in _SHARDS_OPTIMIZER) if trainable else 0
    state_width = DTYPE_BYTES[run.state_dtype or run.parameter_dtype]
    optimizer = round(state_elements * (cost.states * state_width + cost.state_bytes))
    if run.optimizer.value == "adafactor":
        optimizer = sum(factored_elements(m.shape) * m.copies for m in everything) * 4 // (shards if is_sharded else 1)
    gradient_width = DTYPE_BYTES[run.held_gradient_dtype]
    gathered = _gathering(run, root, blocks) if is_sharded and shards > 1 else Gathering()
    return Static(
        parameters=round(parameters * width),
        master=0,
        gradients=round(trainable * gradient_width),
        optimizer=optimizer,
        step_transient=round(state_elements * width * cost.transients) if run.step is Step.FOREACH else 0,
        buckets=round(trainable * gradient_width) if run.sharding is Sharding.DDP else 0,
        gathering=gathered,
        constants=_constants(run),
    )


def _gathering(run: Run, root: Sequence[Matrix], blocks: Sequence[Sequence[Matrix]]) -> Gathering:
    """What FSDP2 gathers: the root throughout; a block's parameters and the output of its all-gather in forward; in
    backward its parameters, the next one's all-gather, and the gradients the last one is still reducing.

    Source: `planner.tracing.sharding`, which follows the same steps op by op.
    """
    element = DTYPE_BYTES[run.compute_dtype]
    shards = run.degrees.data

    def size_of(matrices: Sequence[Matrix]) -> int:
        return round(sum(padded_elements(m.shape, shards) * m.copies for m in matrices) * element)

    largest = max((size_of(one) for one in blocks), default=0)
    return Gathering(
        always=size_of(root),
        forward=2 * largest,
        backward=3 * largest,
        prefetch=largest,
        gradient_share=DTYPE_BYTES[run.held_gradient_dtype] / element / shards,
    )


def _constants(run: Run) -> int:
    """Inputs, labels and positions, and rotary tables."""
    tokens = run.micro_batch * run.length
    return 3 * tokens * DTYPE_BYTES["int64"]


def step_parts(run: Run) -> StepParts:
    """The step to follow."""
    static = static_of(run)
    first, blocks, last = sections_of(run)
    vocab = run.architecture.vocab // run.degrees.tensor
    logits = round(run.micro_batch * run.length * vocab * DTYPE_BYTES[run.compute_dtype])
    return StepParts(
        embedding=first,
        blocks=blocks,
        head=last,
        checkpointing=run.checkpointing,
        group=run.group,
        replays_whole=run.replays_whole,
        resident_bytes=static.parameters + static.master + static.optimizer + static.buckets,
        gradient_bytes=static.gradients,
        gradients_present=run.accumulates or run.gradients_persist,
        gathering=static.gathering,
        outputs_bytes=logits if run.logits_stay else 0,
        inputs_bytes=static.constants,
        keeps_random=run.keeps_random,
    )


def step_moments(run: Run) -> tuple[Moment, ...]:
    """The fullest moments of the step's phases, the optimizer's step included."""
    static = static_of(run)
    optimizer = static.parameters + static.master + static.gradients + static.optimizer + static.buckets
    return (
        *moments(step_parts(run)),
        Moment(
            phase="optimizer step",
            where="optimizer step",
            size_bytes=optimizer + static.step_transient,
            parts={},
        ),
    )


__all__ = ["Checkpointing", "Static", "computation_of", "sections_of", "static_of", "step_moments", "step_parts"]
