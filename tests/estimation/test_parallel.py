"""Degrees of parallelism: what each rank has, by hand and as properties; and what contradicts itself."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.architecture import Architecture, Experts, Norm, Positions, parameter_count
from planner.estimation.blocks import AttentionKind, ContextMethod, Implementation, Kernels
from planner.estimation.estimate import sections_of, static_of, step_moments
from planner.estimation.parallel import DegreesError, check_degrees, in_flight
from planner.estimation.ranks import fullest_rank, ranks_of
from planner.estimation.run import Degrees, Run, Sharding, ZeroBuckets
from planner.estimation.step import Checkpointing, kept_tensors
from planner.families import architecture_of
from planner.spec import OptimizerName

SMALL = architecture_of(
    "llama",
    {
        "hidden_size": 64,
        "intermediate_size": 256,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "vocab_size": 512,
    },
)
# q and o: 64 × 64 each; k and v: 64 × 16 each; gate, up and down: 64 × 256 each; two norms of 64.
BLOCK_PARAMETERS = 2 * 4096 + 2 * 1024 + 3 * 16384 + 128
EMBEDDING_PARAMETERS = 512 * 64
NORM_PARAMETERS = 64

# Experts' matrices have 36 columns.
MIXED = replace(SMALL, experts=Experts(count=4, chosen=2, ffn=36))

LLAMA_65B = architecture_of(
    "llama",
    {
        "hidden_size": 8192,
        "intermediate_size": 22016,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "num_key_value_heads": 64,
        "vocab_size": 32000,
    },
)


def half(a: Architecture = SMALL, **changes: Any) -> Run:
    """All in bfloat16."""
    settings: dict[str, Any] = {
        "architecture": a,
        "micro_batch": 2,
        "length": 64,
        "parameter_dtype": "bfloat16",
        "compute_dtype": "bfloat16",
        "autocast": False,
        "logits_stay": False,
    }
    return Run(**{**settings, **changes})


def static_bytes(run: Run) -> int:
    return fullest_rank(run).static_bytes


# -- one rank and many


@pytest.mark.parametrize("implementation", Implementation)
def test_degrees_of_one_change_nothing(implementation: Implementation) -> None:
    run = half(implementation=implementation)
    alone = replace(
        run,
        degrees=Degrees(expert_tensor=1),
        sharding=Sharding.ZERO3,
        context_method=ContextMethod.ULYSSES,
        micro_batches=4,
    )
    assert step_moments(run) == step_moments(alone)
    assert static_of(run) == static_of(alone)


def test_the_fullest_rank_has_the_odd_row_of_the_vocabulary_and_its_logits() -> None:
    run = half(replace(SMALL, vocab=513), degrees=Degrees(tensor=8))
    logits = next(t for t in sections_of(run)[2].tape.tensors if t.name == "lm_head")
    assert 65 * 128 * 2 == logits.size_bytes  # tokens and bytes of each


def test_tensor_parallel_ranks_have_a_share_of_each_matrix_and_all_norms() -> None:
    # By 4: q, o, gate, up and down in four; the 2 heads of keys and values one on each rank, so k and v in two.
    block = 2 * 1024 + 2 * 512 + 3 * 4096 + 128
    root = 2 * EMBEDDING_PARAMETERS // 4 + NORM_PARAMETERS
    (rank,) = ranks_of(half(degrees=Degrees(tensor=4)))
    assert 8 * block + root == rank.parameters


@pytest.mark.parametrize("degrees", [Degrees(pipeline=4), Degrees(pipeline=8), Degrees(pipeline=2, virtual=4)])
def test_parameters_of_a_pipelines_ranks_add_up_to_the_models(degrees: Degrees) -> None:
    ranks = ranks_of(half(degrees=degrees, micro_batches=8))
    assert parameter_count(SMALL) == sum(rank.parameters for rank in ranks)
    assert list(range(8)) == sorted(layer for rank in ranks for layer in rank.layers)


def test_the_last_stage_has_a_copy_of_a_tied_embedding() -> None:
    tied = replace(SMALL, tied=True)
    ranks = ranks_of(half(tied, degrees=Degrees(pipeline=2)))
    assert parameter_count(tied) + EMBEDDING_PARAMETERS == sum(rank.parameters for rank in ranks)


def test_stages_may_have_layers_as_told() -> None:
    ranks = ranks_of(half(degrees=Degrees(pipeline=3), stage_layers=(1, 4, 3)))
    first = EMBEDDING_PARAMETERS + BLOCK_PARAMETERS
    last = 3 * BLOCK_PARAMETERS + NORM_PARAMETERS + EMBEDDING_PARAMETERS
    assert [first, 4 * BLOCK_PARAMETERS, last] == [rank.parameters for rank in ranks]


DEGREES = ("data", "tensor", "context", "pipeline")


@given(
    degree=st.sampled_from(DEGREES),
    others=st.fixed_dictionaries({name: st.sampled_from((1, 2)) for name in DEGREES}),
    sharding=st.sampled_from(Sharding),
    optimizer=st.sampled_from([OptimizerName.ADAMW, OptimizerName.SGD, OptimizerName.LION]),
)
def test_doubling_a_degree_never_raises_static_memory(
    degree: str, others: dict[str, int], sharding: Sharding, optimizer: OptimizerName
) -> None:
    run = half(optimizer=optimizer, sharding=sharding, degrees=Degrees(**others))
    doubled = replace(run, degrees=replace(run.degrees, **{degree: 2 * others[degree]}))
    assert static_bytes(doubled) <= static_bytes(run)


# -- pipelines


def test_one_forward_one_backward_has_as_many_micro_batches_in_flight_as_stages_remain() -> None:
    run = half(degrees=Degrees(pipeline=4), micro_batches=16)
    assert [4, 3, 2, 1] == [in_flight(replace(run, stage=stage)) for stage in range(4)]
    few = replace(run, micro_batches=2)
    assert [2, 2, 2, 1] == [in_flight(replace(few, stage=stage)) for stage in range(4)]


def test_an_interleaved_pipeline_warms_up_with_two_chunks_for_each_rank_after_and_a_round_for_each_chunk_but_one() -> (
    None
):
    run = half(degrees=Degrees(pipeline=4, virtual=2), micro_batches=16)
    # 2 × (4 - stage - 1) + (2 - 1) × 4 chunks before the first backward, and the one it starts from.
    assert [11, 9, 7, 5] == [in_flight(replace(run, stage=stage)) for stage in range(4)]
    in_fives = replace(run, micro_batch_group=5)
    assert [12, 10, 8, 6] == [in_flight(replace(in_fives, stage=stage)) for stage in range(4)]
    few = replace(run, micro_batches=4)  # of two chunks each: never more than 8 in all
    assert [8, 8, 7, 5] == [in_flight(replace(few, stage=stage)) for stage in range(4)]


def test_micro_batches_in_flight_keep_what_their_blocks_save_and_share_working_memory() -> None:
    run = half(degrees=Degrees(pipeline=4), micro_batches=16)
    one = replace(run, micro_batches=1)
    second = {r.stage: r for r in ranks_of(run)}[1], {r.stage: r for r in ranks_of(one)}[1]
    blocks = sections_of(replace(run, stage=1))[1]
    kept = sum(t.size_bytes for block in blocks for t in kept_tensors(block, Checkpointing.NONE))
    forward = [next(m for m in rank.moments if m.phase == "forward").size_bytes for rank in second]
    gradients = second[0].static.gradients  # of the micro-batches before
    assert 2 * kept + gradients == forward[0] - forward[1]


def test_the_fullest_rank_is_named() -> None:
    run = half(degrees=Degrees(pipeline=4), micro_batches=16, length=1024)
    ranks = ranks_of(run)
    assert max(rank.peak_bytes for rank in ranks) == fullest_rank(run).peak_bytes
    assert 0 == fullest_rank(run).stage


# -- Korthikanti et al., arXiv 2205.05198

S, B, H, A = 2048, 4, 6144, 64  # their 22B model
SBH, SCORES = S * B * H, A * S * S * B
STATISTICS = 2 * 2 * 4 * S * B  # mean and reciprocal deviation of two norms, in float32: not in their formulas
PAPER = Architecture(
    family="gpt",
    layers=4,
    hidden=H,
    heads=A,
    kv_heads=A,
    head_width=H // A,
    ffn=4 * H,
    vocab=51200,
    gated=False,
    activation="gelu",
    norm=Norm.LAYER,
    positions=Positions.LEARNED,
    max_positions=S,
    attention_bias=True,
    output_bias=True,
    mlp_bias=True,
    fused_qkv=True,
    dropout=0.1,
    attention_dropout=0.1,
)


def saved_by_a_block(mode: Checkpointing, **degrees: Any) -> int:
    run = half(
        PAPER,
        micro_batch=B,
        length=S,
        attention=AttentionKind.EAGER,
        norm=Kernels.FUSED,
        implementation=Implementation.MEGATRON,
        degrees=Degrees(**degrees),
    )
    return sum(t.size_bytes for t in kept_tensors(sections_of(run)[1][0], mode))


@pytest.mark.parametrize(
    ("mode", "degrees", "expected"),
    [
        (Checkpointing.NONE, {}, 34 * SBH + 5 * SCORES + STATISTICS),
        (Checkpointing.NONE, {"tensor": 8}, 10 * SBH + (24 * SBH + 5 * SCORES) // 8 + STATISTICS),
        (Checkpointing.NONE, {"tensor": 8, "sequence": True}, (34 * SBH + 5 * SCORES + STATISTICS) // 8),
        (Checkpointing.ATTENTION, {"tensor": 8, "sequence": True}, (34 * SBH + STATISTICS) // 8),
        (Checkpointing.ATTENTION, {}, 34 * SBH + STATISTICS),
        (Checkpointing.BLOCK, {}, 2 * SBH),
        (Checkpointing.BLOCK, {"tensor": 8, "sequence": True}, 2 * SBH // 8),
    ],
)
def test_a_gpt_block_saves_what_the_paper_says(mode: Checkpointing, degrees: dict[str, Any], expected: int) -> None:
    assert expected == saved_by_a_block(mode, **degrees)


def test_recomputed_attention_is_there_only_for_its_own_backward() -> None:
    run = half(
        PAPER,
        length=S,
        attention=AttentionKind.EAGER,
        implementation=Implementation.MEGATRON,
        norm=Kernels.FUSED,
        gradients_persist=True,
    )
    none, core, block = (
        max(m.size_bytes for m in step_moments(replace(run, checkpointing=mode)) if m.phase != "optimizer step")
        for mode in (Checkpointing.NONE, Checkpointing.ATTENTION, Checkpointing.BLOCK)
    )
    assert block < core < none


def test_sequence_parallelism_and_checkpoints_leave_65b_less_than_a_tenth_of_its_activations() -> None:
    run = half(LLAMA_65B, micro_batch=1, length=4096, gradients_persist=True)

    def activations(sequence: bool, mode: Checkpointing) -> int:
        one = replace(run, degrees=Degrees(tensor=8, sequence=sequence), checkpointing=mode)
        static = static_of(one)
        held = static.parameters + static.optimizer + static.gradients
        return max(m.size_bytes for m in step_moments(one) if m.phase != "optimizer step") - held

    # 80 checkpoints of 4096 tokens × 8192 × 2 bytes, an eighth of each on a rank: 671 MB of the 1.1 GB.
    assert 80 * 4096 * 8192 * 2 // 8 < activations(True, Checkpointing.BLOCK) < 1_150_000_000
    assert 10 * activations(True, Checkpointing.BLOCK) < activations(False, Checkpointing.NONE)


# -- context parallelism


def test_ranks_that_share_a_sequence_save_their_tokens_alone() -> None:
    whole, half_of_it = (
        sum(t.size_bytes for t in kept_tensors(sections_of(half(degrees=d))[1][0], Checkpointing.NONE))
        for d in (Degrees(), Degrees(context=2))
    )
    assert whole == 2 * half_of_it


def test_a_ring_holds_two_shares_of_keys_and_values_and_in_backward_their_gradients() -> None:
    def temporaries(method: ContextMethod) -> tuple[int, int]:
        tape = sections_of(half(degrees=Degrees(context=2), context_method=method))[1][0].tape
        op = next(op for op in tape.ops if op.name == "attention")
        return op.forward_bytes, op.backward_bytes

    # 2 sequences × 32 tokens × 2 heads × 8, in bfloat16, of keys and of values.
    share = 2 * (2 * 32 * 2 * 8 * 2)
    ring, exchanged = temporaries(ContextMethod.RING), temporaries(ContextMethod.ULYSSES)
    assert (2 * share, 2 * 2 * share) == (ring[0] - exchanged[0], ring[1] - exchanged[1])


# -- optimizers that are divided


def test_megatron_without_and_with_its_distributed_optimizer_holds_18_and_6_plus_12_by_ranks_bytes_a_parameter() -> (
    None
):
    wide = {"gradient_dtype": "float32", "master_dtype": "float32", "gradients_persist": True}
    count = parameter_count(SMALL)
    assert 18 * count == static_bytes(half(**wide))
    divided = half(**wide, sharding=Sharding.ZERO1, degrees=Degrees(data=4))
    assert 6 * count + 12 * count // 4 == static_bytes(divided)


def test_replicas_do_not_divide_what_each_group_shards() -> None:
    run = half(sharding=Sharding.FSDP2, degrees=Degrees(data=4))
    assert static_of(run) == static_of(replace(run, degrees=Degrees(data=4, replicas=2)))


@pytest.mark.parametrize(
    ("sharding", "expected"),
    [
        # Parameters and gradients of 2 bytes, 12 of master weights and states by 4 ranks; one bucket of gradients.
        (Sharding.ZERO1, 2 + 2 + 12 / 4 + 2),
        (Sharding.ZERO2, 2 + 2 / 4 + 12 / 4 + 2),
        (Sharding.ZERO3, 2 / 4 + 2 / 4 + 12 / 4 + 2 * 2),  # two buckets, for it overlaps
    ],
)
def test_deepspeed_divides_by_stage_and_holds_buckets_no_larger_than_the_gradients(
    sharding: Sharding, expected: float
) -> None:
    run = half(sharding=sharding, master_dtype="float32", degrees=Degrees(data=4), zero=ZeroBuckets())
    assert round(expected * parameter_count(SMALL)) == static_bytes(run)
    small = replace(run, zero=ZeroBuckets(reduce=1000))
    buckets = 2 if sharding is Sharding.ZERO3 else 1
    assert 1000 * 2 * buckets == static_of(small).buckets


def test_zero_3_keeps_no_more_parameters_alive_than_it_is_told() -> None:
    run = half(sharding=Sharding.ZERO3, degrees=Degrees(data=4), zero=ZeroBuckets())
    assert 2 * parameter_count(SMALL) == static_of(run).gathering.always
    few = replace(run, zero=ZeroBuckets(max_live=0, prefetch=10))
    root = 2 * EMBEDDING_PARAMETERS + NORM_PARAMETERS
    assert 2 * (max(root, BLOCK_PARAMETERS) + 10) == static_of(few).gathering.always


# -- contradictions


@pytest.mark.parametrize(
    ("changes", "degree", "ranks", "of"),
    [
        ({"degrees": Degrees(tensor=3)}, "tensor", 3, 8),
        ({"degrees": Degrees(tensor=0)}, "tensor", 0, 1),
        ({"degrees": Degrees(context=3)}, "context", 3, 64),
        ({"a": replace(SMALL, attention_softcap=True), "degrees": Degrees(context=2)}, "context", 2, 1),
        ({"a": MIXED, "degrees": Degrees(tensor=8)}, "tensor", 8, 36),
        ({"degrees": Degrees(context=16), "context_method": ContextMethod.ULYSSES}, "context", 16, 8),
        ({"degrees": Degrees(tensor=8, sequence=True), "length": 60}, "tensor", 8, 60),
        ({"degrees": Degrees(expert=2)}, "expert", 2, 0),
        ({"degrees": Degrees(pipeline=9)}, "pipeline", 9, 8),
        ({"degrees": Degrees(virtual=2)}, "virtual", 2, 1),
        ({"degrees": Degrees(pipeline=2), "stage_layers": (4, 3)}, "pipeline", 2, 8),
        ({"degrees": Degrees(pipeline=2), "stage": 2}, "pipeline", 2, 2),
        ({"degrees": Degrees(pipeline=4, virtual=2), "micro_batches": 6}, "virtual", 4, 6),
    ],
)
def test_degrees_that_contradict_the_model_are_refused(
    changes: dict[str, Any], degree: str, ranks: int, of: int
) -> None:
    with pytest.raises(DegreesError) as error:
        check_degrees(half(**changes))
    assert (degree, ranks, of) == (error.value.degree, error.value.ranks, error.value.of)
