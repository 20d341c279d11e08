"""The memory of a step by phase and part, from a `Run`."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, prod

from planner.architecture import Architecture, Matrix
from planner.costs.optimizers import OPTIMIZER_COSTS, OptimizerCost, factored_elements, padded_elements
from planner.costs.reserved import own_block_bytes
from planner.estimation import experts, megatron
from planner.estimation.blocks import Computation, Implementation, Section, block, embedding, head, passage
from planner.estimation.parallel import (
    chunks_of,
    in_flight,
    is_first,
    is_last,
    root_matrices,
    running_layers,
    shards_of,
    stage_buffers_bytes,
    unlike_blocks,
    zero_buckets_bytes,
    zero_gathering,
    zero_step_bytes,
)
from planner.estimation.run import Run, Sharding
from planner.estimation.step import Checkpointing, Gathering, Moment, StepParts, kept_tensors, moments
from planner.estimation.tape import forward
from planner.spec import OptimizerImplementation, OptimizerName, QuantizationName
from planner.units import DTYPE_BYTES

# Bytes per element of quantized weights. 4 bits and a float32 scale for each 64 elements; with double quantization the
# scales are 8 bits with a float32 of their own for each 256. Int8 has a float32 scale per row, which is nothing.
# Source: QLoRA (arXiv 2305.14314), section 3; bitsandbytes, functional.py, `quantize_4bit` (blocksize 64).
QUANTIZED_BYTES: Mapping[QuantizationName, float] = {
    QuantizationName.NF4: 0.5 + 4 / 64,
    QuantizationName.NF4_DOUBLE: 0.5 + 1 / 64 + 4 / (64 * 256),
    QuantizationName.INT8: 1.0,
}
_FULLY_SHARDED = frozenset({Sharding.ZERO3, Sharding.FSDP1, Sharding.FSDP2})
_SHARDS_GRADIENTS = _FULLY_SHARDED | {Sharding.ZERO2}
_SHARDS_OPTIMIZER = _SHARDS_GRADIENTS | {Sharding.ZERO1}
_ZERO = frozenset({Sharding.ZERO1, Sharding.ZERO2, Sharding.ZERO3})


@dataclass(frozen=True, slots=True, kw_only=True)
class Static:
    """Bytes on one rank that do not depend on the batch."""

    parameters: int
    master: int
    gradients: int
    reduced_gradients: int
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
        norm_in_float32=run.norm_in_float32,
        expands_kv=run.expands_kv,
        loss=run.loss,
        loss_dtype=run.loss_dtype,
        chunks=run.chunks,
        upcasts_in_model=run.upcasts_in_model,
        adapter_autocast=run.adapter_autocast,
        gradient_dtype=(run.gradient_dtype or run.parameter_dtype) if run.autocast else run.compute_dtype,
        trains_base=run.adapters is None,
        adapters=run.adapters,
        dequantized_dtype=run.compute_dtype if run.quantization is not None else None,
        quantizes_head=run.quantizes_head,
        quantized_saves_input=run.quantized_saves_input,
        quantized_from=run.quantized_from,
        tensor_parallel=shared.tensor,
        sequence_parallel=shared.sequence,
        dropout=run.dropout,
        context_parallel=shared.context,
        context_method=run.context_method,
        expert_parallel=shared.expert,
        expert_tensor=shared.of_experts,
        imbalance=run.imbalance,
        copies_attention_output=run.copies_attention_output,
    )


def sections_of(run: Run) -> tuple[Section, tuple[Section, ...], Section]:
    """What a micro-batch passes on this rank: embedding, blocks and head, or what other stages send in their place.

    Alike blocks are one object.
    """
    first, last = _ends_of(
        run.architecture, computation_of(run), run.implementation, is_first=is_first(run), is_last=is_last(run)
    )
    return first, _blocks_of(run, running_layers(run)), last


# Runs that differ in their optimizer or in how it is sharded, as a run's changes do, compute the same.
@lru_cache(maxsize=64)
def _ends_of(
    a: Architecture, c: Computation, implementation: Implementation, *, is_first: bool, is_last: bool
) -> tuple[Section, Section]:
    head_of = megatron.head if implementation is Implementation.MEGATRON else head
    return embedding(a, c) if is_first else passage(a, c), head_of(a, c) if is_last else passage(a, c)


def _blocks_of(run: Run, layers: Sequence[int]) -> tuple[Section, ...]:
    a, c = run.architecture, computation_of(run)
    dense_layers = a.experts.dense_layers if a.experts is not None else 0
    kinds = {layer < dense_layers: layer for layer in layers}
    made = {is_dense: _block_of(a, c, run.implementation, layer) for is_dense, layer in kinds.items()}
    return tuple(made[layer < dense_layers] for layer in layers)


@lru_cache(maxsize=64)
def _block_of(a: Architecture, c: Computation, implementation: Implementation, layer: int) -> Section:
    writer_of = megatron.writer_of if implementation is Implementation.MEGATRON else experts.writer_of
    return block(a, c, writer=writer_of(a, layer))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    """A parameter as the rank holds it.

    Attributes:
        matrix: its shape; `copies` alike.
        dtype_bytes: of an element.
        is_trained: it has a gradient and optimizer state.
        gathered_bytes: of an element, when it is gathered.
    """

    matrix: Matrix
    dtype_bytes: float
    is_trained: bool
    gathered_bytes: float


def _held(run: Run, matrices: Sequence[Matrix]) -> list[_Held]:
    """The parameters of a unit, with the adapters of those that have them."""
    width, compute = DTYPE_BYTES[run.parameter_dtype], DTYPE_BYTES[run.compute_dtype]
    found: list[_Held] = []
    for m in matrices:
        is_kept = m.name in _NEVER_QUANTIZED and not (m.name == "lm_head" and run.quantizes_head)
        is_quantized = run.quantization is not None and m.is_linear and not is_kept
        element = QUANTIZED_BYTES[run.quantization] if is_quantized and run.quantization is not None else width
        found.append(
            _Held(
                matrix=m,
                dtype_bytes=element,
                is_trained=run.adapters is None,
                gathered_bytes=element if is_quantized else compute,
            )
        )
        if run.adapters is not None and m.name in run.adapters.targets:
            ranks, rank, lora = run.adapters.ranks_of(m.name), run.adapters.rank, DTYPE_BYTES[run.adapters.dtype]
            outputs = run.adapters.width_of(run.architecture, m.name, m.shape[0])
            for name, shape in (("lora_A", (ranks, m.shape[1])), ("lora_B", (outputs, rank))):
                adapter = Matrix(name=f"{m.name}.{name}", shape=shape, copies=m.copies)
                found.append(
                    _Held(matrix=adapter, dtype_bytes=lora, is_trained=True, gathered_bytes=min(lora, compute))
                )
    return found


# bitsandbytes leaves the output matrix as it is. Source: transformers, integrations/bitsandbytes.py,
# `get_keys_to_not_convert`.
_NEVER_QUANTIZED = frozenset({"lm_head", "router"})


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldParameter:
    """A parameter of the model as one rank holds it.

    Attributes:
        name: within its block, or within the model.
        is_in_block: which of the two.
        elements: on this rank.
        dtype_bytes: of an element.
        is_adapter: it belongs to LoRA.
        is_quantized: it is held in fewer bits than others.
        copies: as many blocks have it.
    """

    name: str
    is_in_block: bool
    elements: int
    dtype_bytes: float
    is_adapter: bool
    is_quantized: bool
    copies: int = 1


def _elements(held: _Held, shards: int) -> int:
    """Elements on one of the ranks that share it."""
    return padded_elements(held.matrix.shape, shards) * held.matrix.copies // shards


@lru_cache(maxsize=64)  # asked for by the step and by its phases
def static_of(run: Run) -> Static:
    """What the rank holds whatever the batch."""
    root = _held(run, root_matrices(run))
    blocks = [(_held(run, unit), count) for unit, count in unlike_blocks(run)]
    units = [(root, 1), *blocks]
    everything = [(one, count) for unit, count in units for one in unit]
    trained = [(one, count) for one, count in everything if one.is_trained]
    master = 0.0 if run.master_dtype is None else DTYPE_BYTES[run.master_dtype]
    states = transient = largest = masters = gradients = reduced = 0.0
    for one, count in trained:
        cost = _cost_of(run, one)
        of_optimizer = shards_of(run, one.matrix) if run.sharding in _SHARDS_OPTIMIZER else 1
        elements = _elements(one, of_optimizer)
        state_elements = count * elements
        updated = master or one.dtype_bytes  # what the optimizer reads and writes
        state_width = DTYPE_BYTES[run.state_dtype] if run.state_dtype is not None else updated
        if run.optimizer is OptimizerName.ADAFACTOR:
            factored = count * factored_elements(one.matrix.shape) * one.matrix.copies
            states += factored * DTYPE_BYTES["float32"] / of_optimizer
        else:
            states += state_elements * (cost.states * state_width + cost.state_bytes)
        transient += state_elements * updated * cost.transients
        largest = max(largest, elements // one.matrix.copies * updated * cost.transients)
        masters += state_elements * master
    for one, count in _with_gradients(run, units):
        of_reduced = shards_of(run, one.matrix) if run.sharding in _SHARDS_GRADIENTS else 1
        width = count * _gradient_bytes(run, one)
        reduced += _elements(one, of_reduced) * width
        gradients += _elements(one, 1 if run.defers_reduction else of_reduced) * width
    if run.step is OptimizerImplementation.FUSED:
        transient = 0.0
    elif run.in_backward or run.step is OptimizerImplementation.FOR_LOOP:
        transient = largest  # one parameter at a time
    if run.optimizer is OptimizerName.MUON:  # it has one implementation
        transient = max(transient, _muon_bytes([one for one, _ in trained]))
    rests = _rests(run, units)
    reduced += rests
    gradients += 0 if run.defers_reduction else rests
    buckets, gathering = gradients if run.sharding is Sharding.DDP else 0.0, Gathering()
    if run.sharding in _ZERO and run.zero is not None:
        whole = sum(count * one.matrix.elements for one, count in trained)
        shard = sum(count * _elements(one, shards_of(run, one.matrix)) for one, count in trained)
        buckets = zero_buckets_bytes(run, run.zero, whole)
        transient += zero_step_bytes(run, run.zero, whole, shard)
    if run.sharding in _FULLY_SHARDED and shards_of(run, everything[0][0].matrix) > 1:
        gathering = _gathering(run, root, blocks)
    return Static(
        parameters=rests
        + round(
            sum(count * _elements(one, _parameter_shards(run, one)) * one.dtype_bytes for one, count in everything)
        ),
        master=0 if run.offloads_optimizer else round(masters),
        gradients=0 if run.in_backward else round(gradients),
        reduced_gradients=0 if run.in_backward else round(reduced),
        optimizer=0 if run.offloads_optimizer else round(states),
        step_transient=0 if run.offloads_optimizer else round(transient),
        buckets=round(buckets),
        gathering=gathering,
        constants=_constants(run),
    )


def _rests(run: Run, units: Sequence[tuple[Sequence[_Held], int]]) -> int:
    """What the allocator's blocks of all units' shards have beyond them: of parameters, and again of gradients.

    FSDP1 copies its shard out of each unit's flat parameter as the unit is wrapped, when no cached block holds so much,
    and reduces gradients on a stream of their own, where nothing is cached. So both have segments of their own. States
    are made by the optimizer's step of what is cached by then, and not counted; nor are adapters, which are units too.

    Source: torch/distributed/fsdp/_flat_param.py, `_get_shard`; _runtime_utils.py, `_reduce_grad`.
    """
    if not run.counts_blocks or run.sharding is not Sharding.FSDP1 or run.adapters is not None:
        return 0
    found = 0
    for unit, count in units:
        shard_bytes = round(sum(_elements(one, _parameter_shards(run, one)) * one.dtype_bytes for one in unit))
        found += count * (own_block_bytes(shard_bytes) - shard_bytes)
    return found


def _parameter_shards(run: Run, one: _Held) -> int:
    return shards_of(run, one.matrix) if run.sharding in _FULLY_SHARDED else 1


def _cost_of(run: Run, one: _Held) -> OptimizerCost:
    """What the optimizer holds per element of one parameter; Muon leaves all but the blocks' matrices to AdamW."""
    if run.optimizer is OptimizerName.MUON and not _is_muons(one):
        return OPTIMIZER_COSTS[OptimizerName.ADAMW]
    return OPTIMIZER_COSTS["sgd-momentum" if run.momentum else run.optimizer.value]


def _is_muons(one: _Held) -> bool:
    return len(one.matrix.shape) == 2 and one.matrix.name not in _NOT_MUONS


# Source: torch/optim/_muon.py: hidden matrices only; embeddings and the output matrix are to have another optimizer.
_NOT_MUONS = frozenset({"embed_tokens", "embed_positions", "embed_types", "lm_head"})


def _muon_bytes(trained: Sequence[_Held]) -> int:
    """What Muon's step holds for the largest of its matrices, one after the other.

    Source: torch/optim/_muon.py, `_single_tensor_muon` (the update beside the momentum) and
    `_zeropower_via_newtonschulz` (in bfloat16: the matrix, the next one, and two products with its transpose).
    """
    half = DTYPE_BYTES["bfloat16"]
    return max(
        (
            round(prod(one.matrix.shape) * (one.dtype_bytes + 2 * half)) + 2 * half * min(one.matrix.shape) ** 2
            for one in trained
            if _is_muons(one)
        ),
        default=0,
    )


def _with_gradients(run: Run, units: Sequence[tuple[Sequence[_Held], int]]) -> list[tuple[_Held, int]]:
    """What gradients are made of: what is trained, or with flat parameters all of each unit where anything is."""
    found: list[tuple[_Held, int]] = []
    for unit, count in units:
        trained = [one for one in unit if one.is_trained]
        found += [(one, count) for one in (unit if trained and run.flat_gradients else trained)]
    return found


def _gradient_bytes(run: Run, one: _Held) -> float:
    return DTYPE_BYTES[run.gradient_dtype] if run.gradient_dtype is not None else one.dtype_bytes


def _gathering(run: Run, root: Sequence[_Held], blocks: Sequence[tuple[Sequence[_Held], int]]) -> Gathering:
    """What fully sharded training gathers; with each of the blocks, how many are alike.

    FSDP2: the root throughout; a block's parameters and the output of its all-gather in forward; in backward its
    parameters, the next one's all-gather, and the gradients the last one is still reducing. FSDP1: a block in
    forward, and the next one besides in backward.

    Source: `planner.tracing.sharding`, which follows FSDP2 op by op; torch/distributed/fsdp/_runtime_utils.py for
    FSDP1, with its default BACKWARD_PRE prefetch.
    """
    if run.sharding is Sharding.ZERO3 and run.zero is not None:
        units = ((root, 1), *blocks)
        return zero_gathering(run, run.zero, [([o.matrix for o in unit], count) for unit, count in units if unit])
    shards = shards_of(run, blocks[0][0][0].matrix)

    def size_of(unit: Sequence[_Held]) -> int:
        elements = (
            (padded_elements(o.matrix.shape, shards_of(run, o.matrix)) * o.matrix.copies, o.gathered_bytes)
            for o in unit
        )
        return round(sum(count * width for count, width in elements))

    largest = max((size_of(one) for one, _ in blocks), default=0)
    is_new = run.sharding is Sharding.FSDP2
    trained = [one for unit, _ in blocks for one in unit if one.is_trained]
    share = _gradient_bytes(run, trained[0]) / DTYPE_BYTES[run.compute_dtype] if trained else 1.0
    return Gathering(
        always=size_of(root),
        forward=2 * largest if is_new else largest,
        backward=3 * largest if is_new else 2 * largest,
        prefetch=largest,
        gradient_share=share if run.defers_reduction else share / shards,
        root_waits=not run.defers_reduction,
        flat_gradient=largest if run.flat_gradients else 0,
        flat_root_gradient=size_of(root) if run.flat_gradients and any(one.is_trained for one in root) else 0,
    )


def _constants(run: Run) -> int:
    """Inputs, labels and positions, and rotary tables."""
    tokens = run.micro_batch * ceil(run.length / run.degrees.context)
    return 3 * tokens * DTYPE_BYTES["int64"]


def step_parts(run: Run) -> StepParts:
    """The step to follow."""
    static = static_of(run)
    first, blocks, last = sections_of(run)
    vocab = ceil(run.architecture.vocab / run.degrees.tensor)
    output_dtype = run.loss_dtype if run.upcasts_in_model else run.compute_dtype
    logits = round(computation_of(run).tokens * vocab * DTYPE_BYTES[output_dtype])
    has_output = run.logits_stay and is_last(run) and run.implementation is Implementation.TRANSFORMERS
    stream = first.exit.size_bytes
    is_fsdp1 = run.sharding is Sharding.FSDP1 and run.degrees.data > 1
    is_frozen_fsdp1 = is_fsdp1 and run.adapters is not None and not run.flat_gradients
    return StepParts(
        embedding=first,
        blocks=blocks,
        head=last,
        checkpointing=run.checkpointing,
        group=run.group,
        replays_whole=run.replays_whole,
        resident_bytes=static.parameters + static.master + static.optimizer + static.buckets + run.workspace_bytes,
        gradient_bytes=static.gradients,
        gradients_present=run.adds_gradients or run.gradients_persist or run.in_backward,
        waiting_bytes=_waiting_bytes(run, first) + stage_buffers_bytes(run, stream),
        gathering=static.gathering,
        outputs_bytes=logits if has_output else 0,
        lingering_bytes=logits + _kept_by_products(run, blocks) if run.outputs_linger else 0,
        inputs_bytes=static.constants,
        offloads_inputs=run.offloads_inputs,
        keeps_random=run.is_planned,
        keeps_inputs=run.is_planned and run.sharding is Sharding.FSDP2 and run.degrees.data > 1,
        # FSDP 1 waits for the gradients of each block's inputs with hooks that hold those inputs and gradients until
        # backward ends, where a block has frozen parameters.
        # Source: torch/distributed/fsdp/_runtime_utils.py, `_register_post_backward_reshard_only_hook`.
        per_block_backward_bytes=2 * stream if is_frozen_fsdp1 else 0,
    )


def _waiting_bytes(run: Run, first: Section) -> int:
    """What other micro-batches, or other chunks of layers, left on this rank for their backward."""
    waiting = in_flight(run) - 1
    if not waiting:
        return 0
    chunks = chunks_of(run)[run.stage :: run.degrees.pipeline]
    mode = run.checkpointing
    kept = [sum(t.size_bytes for one in _blocks_of(run, c) for t in kept_tensors(one, mode)) for c in chunks]
    return waiting * (max(kept) + _left_by(first))


def _left_by(section: Section) -> int:
    """What a section's forward leaves for backward, its output apart."""
    return forward(section.tape, output=section.exit).end_bytes - section.exit.size_bytes


def _kept_by_products(run: Run, blocks: Sequence[Section]) -> int:
    """What products with quantized weights keep for as long as their graph lives; autograd frees it after backward.

    Source: bitsandbytes 0.42, autograd/_functions.py: `ctx.tensors`, an attribute rather than a saved tensor.
    """
    if not run.quantized_saves_input or run.checkpointing is not Checkpointing.NONE:
        return 0  # the graph of a checkpoint goes with its backward
    found = 0
    for section in blocks:
        tape = section.tape
        inputs = {tape.tensors[op.reads[0]].storage for op in tape.ops if op.saves and op.name.endswith("_proj")}
        found += sum(tape.tensors[t].size_bytes for t in inputs)
    return found


def step_moments(run: Run) -> tuple[Moment, ...]:
    """The fullest moments of the step's phases, the optimizer's step included."""
    static = static_of(run)
    parts = step_parts(run)
    optimizer = static.parameters + static.master + static.reduced_gradients + static.optimizer + static.buckets
    optimizer += parts.lingering_bytes
    optimizer += run.workspace_bytes
    return (
        *moments(parts),
        Moment(
            phase="optimizer step",
            where="optimizer step",
            size_bytes=optimizer + static.step_transient,
            parts={},
        ),
    )


def held_parameters(run: Run) -> tuple[HeldParameter, ...]:
    """What `static_of` adds up, parameter by parameter; those of alike blocks are one, with more copies."""
    root = root_matrices(run)
    found: Counter[HeldParameter] = Counter()
    for is_in_block, unit, copies in ((False, root, 1), *((True, unit, count) for unit, count in unlike_blocks(run))):
        for one in _held(run, unit):
            made = HeldParameter(
                name=one.matrix.name,
                is_in_block=is_in_block,
                elements=_elements(one, _parameter_shards(run, one)),
                dtype_bytes=one.dtype_bytes,
                is_adapter=run.adapters is not None and one.is_trained,
                is_quantized=one.dtype_bytes != DTYPE_BYTES[run.parameter_dtype] and not one.is_trained,
            )
            found[made] += copies
    return tuple(replace(one, copies=copies) for one, copies in found.items())


__all__ = [
    "Checkpointing",
    "HeldParameter",
    "Static",
    "computation_of",
    "held_parameters",
    "sections_of",
    "static_of",
    "step_moments",
    "step_parts",
]
