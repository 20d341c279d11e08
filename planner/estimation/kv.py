"""The KV cache of inference in closed form: what a token takes, and how many fit beside the weights.

What is stored is a vector per key and value head, layer and token (multi-head, grouped-query or multi-query
attention), or one latent vector per layer and token (multi-head latent attention). A layer with a window keeps only
the tokens in it. Memory is handed out in blocks of tokens, which sequences with the same beginning share.

Counted for the fullest GPU. Left out: what engines keep beside the cache (block tables), speculative decoding's
draft model, and pages that some engines enlarge to make layers of different kinds alike.

Source: "Efficient Memory Management for Large Language Model Serving with PagedAttention" (arXiv 2309.06180) for blocks
and shared prefixes; arXiv 1911.02150 (multi-query), 2305.13245 (grouped-query), 2405.04434 section 2.1 (latent);
v1/kv_cache_interface.py for windows and v1/worker/gpu_worker.py of vLLM for the budget.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

from planner.architecture import (
    Architecture,
    Matrix,
    block_parameters,
    embedding_parameters,
    head_parameters,
)
from planner.estimation.kv_formats import (
    BITS_PER_BYTE,
    FORMATS,
    KvError,
    KvFormat,
    WeightFormat,
    is_whole,
    vector_bytes,
)

MOST_TOKENS = 2**40  # a sequence longer than that is no answer, but the sign of one without bound

# vLLM's profiling run samples for as many sequences as the scheduler may run, and sampling holds about this for each
# of their logits: 38.4 to 39.8 in five published logs, Qwen3 0.6B, Llama 3.1 8B, Llama 3.3 70B at TP 2 and
# gpt-oss 20B (llm-d-benchmark, config_explorer/empirical-vllm-memory-results.md) and Gemma 3 4B (vllm#21489).
SAMPLING_BYTES_PER_LOGIT = 39
# EngineArgs.get_batch_defaults of vLLM: max_num_seqs by device memory; an A100 counts as small.
_LARGE_DEVICE_BYTES = 70 * 2**30
_LARGE_DEVICE_SEQUENCES, _SMALL_DEVICE_SEQUENCES = 1024, 256

# The latent attention that a model without one is compared with: DeepSeek-V2's and V3's.
_LATENT_RANK, _LATENT_ROPE_WIDTH = 512, 64
_USUAL_GROUPED_HEADS = 8  # key and value heads of Llama 3, Qwen3, Mistral and Mixtral
_COMPARED_FORMATS = ("bf16", "fp8", "int8", "q8_0", "int4", "q4_0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Vectors:
    """Vectors of one width that a layer stores for each token."""

    count: int
    width: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """What a layer's attention stores.

    Attributes:
        name: such as "GQA".
        kv_heads: heads with keys and values of their own, which ranks divide; 0 for one latent vector, which each
            rank has whole.
        vectors: of all heads.
    """

    name: str
    kv_heads: int
    vectors: tuple[Vectors, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KvSetting:
    """How the cache is used.

    Attributes:
        context_tokens: length of each sequence.
        how: the format of keys and values.
        block_tokens: tokens that memory is handed out for at a time; 1 for none to spare.
        prefix_tokens: the common beginning of all sequences, stored once; whole blocks of it are.
        tensor, pipeline, context: GPUs that share heads, layers and tokens.
    """

    context_tokens: int
    how: KvFormat
    block_tokens: int = 16
    prefix_tokens: int = 0
    tensor: int = 1
    pipeline: int = 1
    context: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class KvBudget:
    """What one GPU has for the cache: memory × fraction − weights − activations − reserved.

    Attributes:
        memory_bytes: of the device.
        fraction: of it that the engine takes.
        weights_bytes: of each pipeline stage.
        activations_bytes: the peak of one forward pass, sampling included.
        reserved_bytes: what is outside PyTorch, CUDA graphs, and whatever else is to stay free.
    """

    memory_bytes: int
    fraction: float
    weights_bytes: tuple[int, ...]
    activations_bytes: int = 0
    reserved_bytes: int = 0

    def cache_bytes(self, stage: int) -> int:
        """What is left for the cache in that stage; negative if not even the weights fit."""
        engine_bytes = int(self.memory_bytes * self.fraction)
        return engine_bytes - self.weights_bytes[stage] - self.activations_bytes - self.reserved_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGroup:
    """Layers of one GPU with the same window: `window_tokens` is 0 without; `token_bytes` is of one layer."""

    layers: int
    window_tokens: int
    token_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """What fits on the GPUs of one pipeline stage.

    Attributes:
        stage: which, from 0.
        groups: its layers.
        cache_bytes: memory for the cache; negative if not even the weights fit.
        token_bytes: of a token in all layers, before a window drops it.
        sequence_bytes: what each sequence takes for itself.
        shared_bytes: what the common prefix takes once.
        tokens: how many the blocks have room for; with windows, of sequences of the context's length.
        sequences: of the context's length, at once.
        longest_tokens: of one sequence alone; None if windows let it grow for ever.
    """

    stage: int
    groups: tuple[LayerGroup, ...]
    cache_bytes: int
    token_bytes: int
    sequence_bytes: int
    shared_bytes: int
    tokens: int
    sequences: int
    longest_tokens: int | None

    def needed_bytes(self, sequences: int) -> int:
        """What so many sequences take."""
        return self.shared_bytes + sequences * self.sequence_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """The same model with another attention or another format: `relative` is to the first of its table."""

    name: str
    kv_heads: int
    is_this: bool
    token_bytes: int
    relative: float
    sequences: int


# -- what is stored


def attention_of(a: Architecture) -> Attention:
    """What the model's attention stores.

    Raises:
        KvError: it is an encoder.
    """
    if not a.causal:
        raise KvError(
            f"{a.family} is an encoder: it reads all tokens at once and has no KV cache; "
            "`planner kv` is for decoders, such as LlamaForCausalLM or GPT2LMHeadModel"
        )
    if a.latent is not None:
        return _latent(a.latent.kv_rank + a.latent.rope_width)
    return _grouped(a, a.kv_heads)


def _latent(width: int) -> Attention:
    return Attention(name="MLA", kv_heads=0, vectors=(Vectors(count=1, width=width),))


def _grouped(a: Architecture, kv_heads: int) -> Attention:
    name = "MHA" if kv_heads == a.heads else "MQA" if kv_heads == 1 else "GQA"
    if (latent := a.latent) is not None:
        keys = Vectors(count=kv_heads, width=latent.plain_width + latent.rope_width)
        values = Vectors(count=kv_heads, width=latent.value_width)
        return Attention(name=name, kv_heads=kv_heads, vectors=(keys, values))
    return Attention(name=name, kv_heads=kv_heads, vectors=(Vectors(count=2 * kv_heads, width=a.head_width),))


def attentions(a: Architecture) -> tuple[Attention, ...]:
    """What the same model would store with each kind of attention, multi-head first; the model's own is among them."""
    own = attention_of(a)
    grouped = _USUAL_GROUPED_HEADS
    heads = {a.heads, 1} | ({own.kv_heads} if own.kv_heads else set())
    if a.heads % grouped == 0 and not any(1 < kv_heads < a.heads for kv_heads in heads):
        heads.add(grouped)
    kinds = [_grouped(a, kv_heads) for kv_heads in sorted(heads, reverse=True)]
    latent = own if own.kv_heads == 0 else _latent(_LATENT_RANK + _LATENT_ROPE_WIDTH)
    return (*kinds, latent)


def heads_per_rank(kv_heads: int, ranks: int, *, heads: int) -> int:
    """The key and value heads that each tensor-parallel rank holds: its share, or one that several ranks hold too.

    Args:
        kv_heads: of the model; 0 for a latent vector, which is no head and stays whole.
        ranks: of tensor parallelism.
        heads: query heads, which must be divided too.

    Raises:
        KvError: the ranks cannot share the heads evenly.
    """
    if heads % ranks:
        raise KvError(
            f"{heads} attention heads cannot be shared by {ranks} ranks; {_ranks(heads, kv_heads)}", option="--tp"
        )
    if not can_share(kv_heads, ranks):
        raise KvError(
            f"{kv_heads} key and value heads cannot be shared by {ranks} ranks, nor each held by equally many; "
            f"{_ranks(heads, kv_heads)}",
            option="--tp",
        )
    return max(1, kv_heads // ranks) if kv_heads else 0


def can_share(kv_heads: int, ranks: int) -> bool:
    """Whether ranks can divide the heads evenly, or each head be held by equally many; always of a latent vector."""
    return kv_heads == 0 or kv_heads % ranks == 0 or ranks % kv_heads == 0


_MOST_RANKS = 1024
_SHOWN_RANKS = 8


def _ranks(heads: int, kv_heads: int) -> str:
    """Which numbers of ranks work, the smallest few."""
    good = [n for n in range(1, min(heads, _MOST_RANKS) + 1) if heads % n == 0 and can_share(kv_heads, n)]
    return f"use one of {', '.join(str(n) for n in good[:_SHOWN_RANKS])}"


def layer_token_bytes(attention: Attention, how: KvFormat, *, heads: int, ranks: int = 1) -> int:
    """The bytes of one token in one layer on one tensor-parallel rank.

    Raises:
        KvError: the ranks cannot share the heads, or the format does not fit their width.
    """
    held = heads_per_rank(attention.kv_heads, ranks, heads=heads)
    vectors = attention.vectors
    if attention.kv_heads:
        vectors = tuple(replace(v, count=v.count // attention.kv_heads * held) for v in vectors)
    return sum(v.count * vector_bytes(how, v.width) for v in vectors)


def layer_groups(
    a: Architecture, attention: Attention, setting: KvSetting, layers: Iterable[int]
) -> tuple[LayerGroup, ...]:
    """The given layers as one GPU holds them, those without a window first."""
    token_bytes = layer_token_bytes(attention, setting.how, heads=a.heads, ranks=setting.tensor)
    windows = a.windows
    return tuple(
        LayerGroup(layers=count, window_tokens=window, token_bytes=token_bytes)
        for window, count in sorted(Counter(windows[layer] for layer in layers).items())
    )


def stages(layers: int, count: int) -> tuple[range, ...]:
    """The layers of each pipeline stage: as even as can be, the first ones with one more.

    Raises:
        KvError: there are more stages than layers.
    """
    if count > layers:
        raise KvError(f"{layers} layers cannot be shared by {count} stages; use at most {layers}", option="--pp")
    each, more = divmod(layers, count)
    starts = [stage * each + min(stage, more) for stage in range(count + 1)]
    return tuple(range(start, end) for start, end in pairwise(starts))


# -- blocks


def held_tokens(tokens: int, window_tokens: int, block_tokens: int) -> int:
    """The tokens for which a layer holds memory, when a sequence has so many.

    A window of W tokens that ends anywhere touches at most ⌈(W − 1) / B⌉ + 1 blocks of B.
    """
    blocks = _blocks(tokens, block_tokens)
    if window_tokens:
        blocks = min(blocks, _blocks(window_tokens - 1, block_tokens) + 1)
    return blocks * block_tokens


def _blocks(tokens: int, block_tokens: int) -> int:
    return -(-tokens // block_tokens)


def sequence_bytes(groups: Iterable[LayerGroup], setting: KvSetting, tokens: int) -> int:
    """The bytes of one sequence of so many tokens on one GPU, its last block whole."""
    here = -(-tokens // setting.context)
    return sum(
        group.layers
        * group.token_bytes
        * held_tokens(here, -(-group.window_tokens // setting.context), setting.block_tokens)
        for group in groups
    )


def shared_tokens(setting: KvSetting) -> int:
    """The tokens of the prefix in whole blocks: only those are shared."""
    whole = setting.block_tokens * setting.context
    return setting.prefix_tokens // whole * whole


def fit(a: Architecture, attention: Attention, setting: KvSetting, budget: KvBudget) -> Fit:
    """What fits on the fullest GPU.

    Raises:
        KvError: the setting does not go with the model.
    """
    if setting.prefix_tokens >= setting.context_tokens:
        raise KvError(
            f"{setting.prefix_tokens:,} tokens leave nothing of sequences of {setting.context_tokens:,}; "
            "use fewer, or a longer --context",
            option="--shared-prefix",
        )
    found = [
        _fit_stage(stage, layer_groups(a, attention, setting, layers), setting, budget.cache_bytes(stage))
        for stage, layers in enumerate(stages(a.layers, setting.pipeline))
    ]
    return min(found, key=lambda one: (one.sequences, one.tokens, one.cache_bytes))


def _fit_stage(stage: int, groups: tuple[LayerGroup, ...], setting: KvSetting, cache_bytes: int) -> Fit:
    shared = shared_tokens(setting)
    own_bytes = sequence_bytes(groups, setting, setting.context_tokens - shared)
    shared_bytes = sequence_bytes(groups, setting, shared)
    sequences = max(0, (cache_bytes - shared_bytes) // own_bytes)
    token_bytes = sum(group.layers * group.token_bytes for group in groups)
    if any(group.window_tokens for group in groups):
        tokens = sequences * setting.context_tokens
    else:
        tokens = max(0, cache_bytes // (token_bytes * setting.block_tokens)) * setting.block_tokens * setting.context
    return Fit(
        stage=stage,
        groups=groups,
        cache_bytes=cache_bytes,
        token_bytes=token_bytes,
        sequence_bytes=own_bytes,
        shared_bytes=shared_bytes,
        tokens=tokens,
        sequences=sequences,
        longest_tokens=_longest(groups, setting, cache_bytes),
    )


def _longest(groups: tuple[LayerGroup, ...], setting: KvSetting, cache_bytes: int) -> int | None:
    size = partial(sequence_bytes, groups, setting)
    if size(MOST_TOKENS) <= cache_bytes:
        return None
    return max(0, bisect_right(range(MOST_TOKENS), cache_bytes, key=size) - 1)


def mean_waste_tokens(block_tokens: int) -> float:
    """The tokens that a sequence's last block has room for and does not hold, on average over all lengths."""
    return (block_tokens - 1) / 2


# -- beside the cache


def activation_peak_bytes(a: Architecture, memory_bytes: int) -> int:
    """What one forward pass holds at its peak, as a serving engine measures it before it sizes the cache.

    An estimate after vLLM's defaults, where sampling is the peak; see `SAMPLING_BYTES_PER_LOGIT`.
    """
    return profiled_sequences(memory_bytes) * a.vocab * SAMPLING_BYTES_PER_LOGIT


def profiled_sequences(memory_bytes: int) -> int:
    """How many sequences the profiling run samples for."""
    return _LARGE_DEVICE_SEQUENCES if memory_bytes >= _LARGE_DEVICE_BYTES else _SMALL_DEVICE_SEQUENCES


def weights_bytes(a: Architecture, how: WeightFormat, *, tensor: int = 1, pipeline: int = 1) -> tuple[int, ...]:
    """The bytes of the weights on one GPU of each pipeline stage.

    Ranks divide linear layers and embeddings; each has norms, routers and the projections into latent vectors whole,
    and at least one key and value head. The embedding is in the first stage, the output matrix, tied or not, in the
    last.

    Raises:
        KvError: ranks or stages cannot share the model.
    """
    share = partial(_matrix_bytes, a, how, tensor)
    parts = stages(a.layers, pipeline)
    found = [sum(share(m) for layer in layers for m in block_parameters(a, layer)) for layers in parts]
    rest = WeightFormat(
        name=how.name, bits=how.other_bytes * BITS_PER_BYTE, other_bytes=how.other_bytes, source=how.source
    )
    outside = partial(_matrix_bytes, a, rest, tensor)
    found[0] += sum(outside(m) for m in embedding_parameters(a))
    found[-1] += sum(outside(m) for m in head_parameters(a))
    if a.tied and pipeline > 1:
        found[-1] += outside(embedding_parameters(a)[0])
    return tuple(found)


_WHOLE = frozenset({"q_a_proj", "kv_a_proj", "router"})
_KEYS_AND_VALUES = frozenset({"k_proj", "v_proj"})


def _matrix_bytes(a: Architecture, how: WeightFormat, ranks: int, matrix: Matrix) -> int:
    name = matrix.name.removesuffix(".bias")
    is_quantized = matrix.is_linear and name != "router"
    bits = how.bits if is_quantized else how.other_bytes * BITS_PER_BYTE
    elements = matrix.elements
    if ranks > 1 and a.latent is None and name in {*_KEYS_AND_VALUES, "qkv_proj"}:
        held = heads_per_rank(a.kv_heads, ranks, heads=a.heads)
        rows = {"qkv_proj": a.heads // ranks + 2 * held}.get(name, held) * a.head_width
        elements = elements // matrix.shape[0] * rows
    elif name not in _WHOLE and (matrix.is_linear or len(matrix.shape) > 1):
        elements = -(-elements // ranks)
    return round(elements * bits / BITS_PER_BYTE)


# -- compared


def compare_attentions(a: Architecture, setting: KvSetting, budget: KvBudget) -> tuple[Alternative, ...]:
    """The same model and memory with each kind of attention that the ranks and the format allow."""
    own = attention_of(a)
    kinds = [kind for kind in attentions(a) if _works(kind, setting)]
    fits = [fit(a, kind, setting, budget) for kind in kinds]
    return tuple(
        Alternative(
            name=kind.name,
            kv_heads=kind.kv_heads,
            is_this=kind == own,
            token_bytes=found.token_bytes,
            relative=found.token_bytes / fits[0].token_bytes,
            sequences=found.sequences,
        )
        for kind, found in zip(kinds, fits, strict=True)
    )


def compare_formats(a: Architecture, setting: KvSetting, budget: KvBudget) -> tuple[Alternative, ...]:
    """The same model and memory with each of the usual formats that go with its heads' width."""
    own = attention_of(a)
    names = dict.fromkeys((*_COMPARED_FORMATS, setting.how.name))
    settings = [replace(setting, how=FORMATS[name]) for name in names]
    settings = [other for other in settings if _works(own, other)]
    fits = [fit(a, own, other, budget) for other in settings]
    return tuple(
        Alternative(
            name=other.how.name,
            kv_heads=own.kv_heads,
            is_this=other == setting,
            token_bytes=found.token_bytes,
            relative=found.token_bytes / fits[0].token_bytes,
            sequences=found.sequences,
        )
        for other, found in zip(settings, fits, strict=True)
    )


def _works(attention: Attention, setting: KvSetting) -> bool:
    are_shared = can_share(attention.kv_heads, setting.tensor)
    return are_shared and all(is_whole(setting.how, vectors.width) for vectors in attention.vectors)
