"""What one rank has of a model that several share: matrices, layers, micro-batches in flight, and buffers.

All ranks of a pipeline's stage are alike here: tensor and context parallelism divide evenly, and experts get as many
tokens as `Run.imbalance` says. So a rank is a stage, and `Run.stage` says which. Left out: schedules other than 1F1B
and its interleaved form.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from math import ceil

from planner.architecture import (
    Architecture,
    Matrix,
    block_parameters,
    embedding_parameters,
    head_parameters,
)
from planner.errors import PlannerError
from planner.estimation.blocks import ContextMethod
from planner.estimation.run import Degrees, Run, Sharding, ZeroBuckets
from planner.estimation.step import Gathering
from planner.units import DTYPE_BYTES

# Linear layers of which each rank has rows, and so outputs; and those of which it has columns, and so inputs.
# Source: Megatron-LM, core/transformer/attention.py, mlp.py, multi_latent_attention.py.
_BY_ROWS = frozenset(
    {"q_proj", "k_proj", "v_proj", "qkv_proj", "gate_proj", "up_proj", "gate_up_proj", "q_b_proj", "kv_b_proj"}
    | {"lm_head", "embed_tokens"}
)
_BY_COLUMNS = frozenset({"o_proj", "down_proj"})
_KEYS_AND_VALUES = frozenset({"k_proj", "v_proj"})


class DegreesError(PlannerError):
    """Degrees of parallelism that contradict each other or the model.

    Args:
        what, hint: what cannot be, and what to try.
        degree: the name of the field of `Degrees`.
        ranks: its value.
        of: what it should divide, as a number.
    """

    def __init__(self, what: str, *, hint: str, degree: str, ranks: int, of: int) -> None:
        super().__init__(f"{what}; {hint}")
        self.what = what
        self.hint = hint
        self.degree = degree
        self.ranks = ranks
        self.of = of


def check_degrees(run: Run) -> None:
    """Nothing, if the degrees fit the model and each other.

    Raises:
        DegreesError: they do not.
    """
    d, a = run.degrees, run.architecture
    whole = "use a divisor"

    def divides(degree: str, ranks: int, of: int, what: str) -> None:
        if of % ranks:
            raise DegreesError(f"{ranks} ranks cannot share {of} {what}", hint=whole, degree=degree, ranks=ranks, of=of)

    for degree in ("data", "tensor", "context", "pipeline", "virtual", "expert", "replicas"):
        if getattr(d, degree) < 1:
            message, found = f"expected at least 1 rank, found {getattr(d, degree)}", getattr(d, degree)
            raise DegreesError(message, hint="leave it out for 1", degree=degree, ranks=found, of=1)
    divides("tensor", d.tensor, a.heads, "heads")
    if a.latent is None and max(d.tensor, a.kv_heads) % min(d.tensor, a.kv_heads):
        message = f"{d.tensor} ranks can neither share nor copy {a.kv_heads} heads of keys and values"
        raise DegreesError(message, hint=whole, degree="tensor", ranks=d.tensor, of=a.kv_heads)
    if a.experts is None or a.experts.dense_layers:
        divides("tensor", d.tensor, a.ffn, "columns of the feed-forward layer")
    if a.experts is not None:
        divides("tensor", d.of_experts, a.experts.ffn, "columns of an expert")
        divides("tensor", d.tensor, a.experts.shared_ffn, "columns of the shared experts")
    if d.context > 1:
        if a.attention_softcap:
            message = "ranks that share sequences exchange what a kernel makes, and none caps scores as this model does"
            hint = "use tensor parallelism with sequence parallelism"
            raise DegreesError(message, hint=hint, degree="context", ranks=d.context, of=1)
        divides("context", d.context, run.length, "tokens")
        if run.context_method is ContextMethod.ULYSSES:
            divides("context", d.tensor * d.context, a.heads, "heads, of which an all-to-all gives each rank some")
    if d.sequence and not a.causal:
        message = "sequence parallelism is known for decoders"
        raise DegreesError(message, hint="leave it out", degree="tensor", ranks=d.tensor, of=1)
    if d.sequence:
        divides("tensor", d.tensor, run.length // d.context, "tokens")
    count = a.experts.count if a.experts is not None else 0
    if d.expert > 1 and not count:
        message = f"{d.expert} ranks are to share experts, and the model has none"
        raise DegreesError(message, hint="leave it out", degree="expert", ranks=d.expert, of=0)
    if count:
        divides("expert", d.expert, count, "experts")
        ranks = d.data * d.replicas * d.context * d.tensor
        divides("expert", d.expert * d.of_experts, ranks, "ranks of a stage, among which experts are")
    _check_stages(run)


def _check_stages(run: Run) -> None:
    d, layers = run.degrees, run.architecture.layers
    chunks = d.pipeline * d.virtual
    if d.virtual > 1 and d.pipeline == 1:
        message = f"{d.virtual} chunks of layers are to take turns on a rank, and the pipeline has one rank"
        raise DegreesError(message, hint="leave it out", degree="virtual", ranks=d.virtual, of=1)
    if chunks > layers and not run.stage_layers:
        message = f"{layers} layers do not make {chunks} chunks"
        raise DegreesError(message, hint="use fewer", degree="pipeline", ranks=chunks, of=layers)
    if run.stage_layers and (len(run.stage_layers) != chunks or sum(run.stage_layers) != layers):
        message = f"{chunks} chunks of {sum(run.stage_layers)} layers in {len(run.stage_layers)} numbers, of {layers}"
        raise DegreesError(message, hint="give one number a chunk", degree="pipeline", ranks=chunks, of=layers)
    if not 0 <= run.stage < d.pipeline:
        message = f"there is no stage {run.stage} of {d.pipeline}"
        raise DegreesError(message, hint="count from 0", degree="pipeline", ranks=run.stage, of=d.pipeline)
    if d.virtual > 1 and run.micro_batches % d.pipeline and run.micro_batch_group is None:
        message = f"{run.micro_batches} micro-batches do not go round {d.pipeline} ranks in turns"
        raise DegreesError(message, hint="use a multiple", degree="virtual", ranks=d.pipeline, of=run.micro_batches)


# -- layers


def chunks_of(run: Run) -> tuple[tuple[int, ...], ...]:
    """The layers of each chunk of the pipeline, in the model's order; stage s has chunks s, s + stages, and so on."""
    d, layers = run.degrees, run.architecture.layers
    count = d.pipeline * d.virtual
    sizes = run.stage_layers or tuple(layers // count + (place < layers % count) for place in range(count))
    starts = [sum(sizes[:place]) for place in range(count)]
    return tuple(tuple(range(start, start + size)) for start, size in zip(starts, sizes, strict=True))


def layers_of(run: Run) -> tuple[int, ...]:
    """All layers whose parameters the stage has."""
    return tuple(layer for chunk in chunks_of(run)[run.stage :: run.degrees.pipeline] for layer in chunk)


def running_layers(run: Run) -> tuple[int, ...]:
    """The layers of the stage's last chunk: what runs when most is in flight."""
    return chunks_of(run)[run.stage :: run.degrees.pipeline][-1]


def is_first(run: Run) -> bool:
    """The stage has the embedding."""
    return run.stage == 0


def is_last(run: Run) -> bool:
    """The stage has the head and the loss."""
    return run.stage == run.degrees.pipeline - 1


def in_flight(run: Run) -> int:
    """Chunks of layers whose activations the stage holds at most at once, one micro-batch each.

    Source: Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM" (arXiv
    2104.04473), section 2.2; Megatron-LM, core/pipeline_parallel/schedules.py, `get_pp_rank_microbatches`.
    """
    d = run.degrees
    ahead = d.pipeline - run.stage - 1
    if d.virtual == 1:
        return min(run.micro_batches, ahead + 1)
    group = d.pipeline if run.micro_batch_group is None else run.micro_batch_group
    warm_up = 2 * ahead + (d.virtual - 1) * group
    return min(run.micro_batches * d.virtual, warm_up + 1)


# -- parameters


def root_matrices(run: Run) -> tuple[Matrix, ...]:
    """The parameters outside blocks that the stage's rank has, its share of each."""
    a = run.architecture
    found: list[Matrix] = []
    if is_first(run):
        found += embedding_parameters(a)
    if is_last(run):
        found += head_parameters(a)
        if a.tied and not is_first(run):  # the output matrix is a copy of the first stage's
            found.append(Matrix(name="lm_head", shape=(a.vocab, a.hidden), is_linear=True))
    return tuple(_share(m, run.degrees, a) for m in found)


def unlike_blocks(run: Run) -> tuple[tuple[tuple[Matrix, ...], int], ...]:
    """The parameters of a block, the rank's share of each, and how many of the stage's blocks are alike."""
    experts = run.architecture.experts
    dense_layers = experts.dense_layers if experts is not None else 0
    kinds = Counter(min(layer, dense_layers) for layer in layers_of(run))
    return tuple((_shares(run.architecture, run.degrees, kind), count) for kind, count in kinds.items())


@lru_cache(maxsize=64)
def _shares(a: Architecture, d: Degrees, layer: int) -> tuple[Matrix, ...]:
    return tuple(_share(m, d, a) for m in block_parameters(a, layer))


def _share(m: Matrix, d: Degrees, a: Architecture) -> Matrix:
    base = m.name.removesuffix(".bias").rpartition(".")[2]
    copies = m.copies // d.expert if m.is_expert else m.copies
    ranks = d.of_experts if m.is_expert else d.tensor
    if base in _BY_ROWS:
        rows = m.shape[0]
        if base in _KEYS_AND_VALUES:
            rows = max(a.kv_heads // ranks, 1) * a.head_width
        elif base == "qkv_proj":
            rows = a.q_width // ranks + 2 * max(a.kv_heads // ranks, 1) * a.head_width
        else:
            rows = ceil(rows / ranks)
        return replace(m, shape=(rows, *m.shape[1:]), copies=copies)
    if base in _BY_COLUMNS and len(m.shape) == 2:
        return replace(m, shape=(m.shape[0], ceil(m.shape[1] / ranks)), copies=copies)
    return replace(m, copies=copies)


def shards_of(run: Run, m: Matrix) -> int:
    """Data-parallel ranks that can divide a parameter: those that have the same share of it.

    Where a tensor is not divided by context parallelism, its ranks are data-parallel ones.
    Source: Megatron-LM, core/parallel_state.py, data-parallel groups "with context parallel" and those of experts.
    """
    d = run.degrees
    ranks = d.data * d.context
    if m.is_expert:
        ranks = max(1, ranks * d.tensor // (d.expert * d.of_experts))
    return ranks


# -- buffers


def stage_buffers_bytes(run: Run, stream_bytes: int) -> int:
    """What a stage holds to send and to receive, beside what it computes with: one gradient that comes or goes."""
    return stream_bytes if run.degrees.pipeline > 1 else 0


_OVERLAPS = frozenset({Sharding.ZERO3})


def zero_buckets_bytes(run: Run, z: ZeroBuckets, elements: int) -> int:
    """DeepSpeed's gradient buckets; no bucket is larger than all gradients.

    Source: deepspeed/runtime/zero/stage_1_and_2.py and stage3.py (`ipg_buffer`, two with `overlap_comm`).
    """
    overlaps = run.sharding in _OVERLAPS if z.overlaps is None else z.overlaps
    return round(min(z.reduce, elements) * (1 + overlaps) * DTYPE_BYTES[run.compute_dtype])


def zero_step_bytes(run: Run, z: ZeroBuckets, elements: int, shard: int) -> int:
    """What DeepSpeed's step holds: gradients in float32, and after it the parameters that are gathered.

    Source: stage_1_and_2.py, `step` (`single_grad_partition` in float32, then `all_gather_dp_groups`); stage3.py,
    `step`, one sub-group at a time.
    """
    full = DTYPE_BYTES["float32"]
    if run.sharding is Sharding.ZERO3:
        return round(min(z.sub_group, shard) * full)
    return round(max(shard * full, min(z.allgather, elements) * DTYPE_BYTES[run.compute_dtype]))


def zero_gathering(run: Run, z: ZeroBuckets, units: Sequence[tuple[Sequence[Matrix], int]]) -> Gathering:
    """What ZeRO 3 has gathered: as many parameters as may be alive, for one is kept while it is used again before
    `stage3_max_reuse_distance`; at least the largest unit, and what is fetched ahead of it.

    Source: deepspeed/runtime/zero/partitioned_param_coordinator.py, `fetch_sub_module` and `release_sub_module`.
    """
    sizes = [(sum(m.elements for m in unit), count) for unit, count in units]
    largest = max((size for size, _ in sizes), default=0)
    alive = min(sum(size * count for size, count in sizes), max(z.max_live, largest + z.prefetch))
    return Gathering(
        always=round(alive * DTYPE_BYTES[run.compute_dtype]), gradient_share=1 / shards_of(run, units[0][0][0])
    )
