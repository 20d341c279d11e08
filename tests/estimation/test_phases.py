"""Memory by phase and part: literal small cases by hand, and what must hold for every run."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.architecture import Architecture
from planner.estimation.blocks import Adapters
from planner.estimation.estimate import step_parts
from planner.estimation.explain import Formula, explain
from planner.estimation.phases import Part, Phase, PhasePeak, phases_of
from planner.estimation.run import Degrees, Run, Sharding, ZeroBuckets
from planner.estimation.step import Checkpointing, moments
from planner.estimation.verdict import Verdict, estimate
from planner.reporting.estimate import formula_text
from planner.spec import OptimizerImplementation, OptimizerName, QuantizationName
from tests.steps import UNIT_DEVICE

# 2 blocks of: q, k, v, o 8×8; gate, up, down 16×8; two norms of 8. Embedding and output matrix of 32×8, a last norm.
TINY = Architecture(family="llama", layers=2, hidden=8, heads=2, kv_heads=2, head_width=4, ffn=16, vocab=32)
BLOCK = 4 * 8 * 8 + 3 * 16 * 8 + 2 * 8
WEIGHTS = 2 * BLOCK + 2 * 32 * 8 + 8
RUN = Run(architecture=TINY, micro_batch=2, length=4)


def peak_of(run: Run, phase: Phase) -> PhasePeak:
    return next(one for one in phases_of(run) if one.phase is phase)


def test_a_step_of_adamw_holds_four_copies_of_the_weights_and_one_of_temporaries() -> None:
    expected = {
        Part.PARAMETERS: 4 * WEIGHTS,
        Part.GRADIENTS: 4 * WEIGHTS,
        Part.OPTIMIZER: 8 * WEIGHTS,
        Part.STEP: 4 * WEIGHTS,
    }
    assert expected == peak_of(RUN, Phase.STEP).parts


@pytest.mark.parametrize(
    ("changes", "part", "expected"),
    [
        ({"step": OptimizerImplementation.FUSED}, Part.STEP, None),
        ({"step": OptimizerImplementation.FOR_LOOP}, Part.STEP, 4 * 32 * 8),  # of the largest parameter
        ({"in_backward": True}, Part.STEP, 4 * 32 * 8),
        ({"in_backward": True, "step": OptimizerImplementation.FUSED}, Part.STEP, None),
        ({"optimizer": OptimizerName.SGD}, Part.OPTIMIZER, None),
        ({"optimizer": OptimizerName.SGD, "momentum": 0.9}, Part.OPTIMIZER, 4 * WEIGHTS),
        ({"optimizer": OptimizerName.LION}, Part.OPTIMIZER, 4 * WEIGHTS),
        ({"optimizer": OptimizerName.PAGED_ADAMW_8BIT}, Part.OPTIMIZER, None),
        ({"optimizer": OptimizerName.ADAM_8BIT}, Part.OPTIMIZER, round(WEIGHTS * 2 * (1 + 4 / 256))),
        # One state of the blocks' matrices, two of norms, embedding and output matrix.
        ({"optimizer": OptimizerName.MUON}, Part.OPTIMIZER, 4 * (WEIGHTS + 2 * 2 * 8 + 2 * 32 * 8 + 8)),
        # A 16×8 matrix: the update, two of it and two 8×8 products in bfloat16; AdamW's matrices are larger together.
        (
            {"optimizer": OptimizerName.MUON, "step": OptimizerImplementation.FOREACH},
            Part.STEP,
            4 * (2 * 2 * 8 + 2 * 32 * 8 + 8),
        ),
        ({"state_dtype": "bfloat16"}, Part.OPTIMIZER, 4 * WEIGHTS),
        ({"parameter_dtype": "bfloat16", "master_dtype": "float32"}, Part.MASTER, 4 * WEIGHTS),
        ({"parameter_dtype": "bfloat16", "master_dtype": "float32"}, Part.OPTIMIZER, 8 * WEIGHTS),
        ({"in_backward": True}, Part.GRADIENTS, None),
        ({"offloads_optimizer": True}, Part.OPTIMIZER, None),
        ({"sharding": Sharding.DDP, "degrees": Degrees(data=2)}, Part.BUCKETS, 4 * WEIGHTS),
        ({"sharding": Sharding.FSDP2, "degrees": Degrees(data=2)}, Part.PARAMETERS, 2 * WEIGHTS),
    ],
)
def test_what_is_held_at_the_optimizer_step(changes: dict[str, Any], part: Part, expected: int | None) -> None:
    assert expected == peak_of(replace(RUN, **changes), Phase.STEP).parts.get(part)


@pytest.mark.parametrize(
    ("sharding", "ranks", "rest_bytes"),
    [
        # 65 MiB and 8 bytes of the root in a segment of 66, of which no more can be split off; blocks of 656 bytes.
        (Sharding.FSDP1, 4, 2**20 - 8 + 2 * (1024 - 656)),
        # 130 MiB and 16 bytes: all but the next multiple of 512 is split off; blocks of 1312 bytes.
        (Sharding.FSDP1, 2, 512 - 16 + 2 * (1536 - 1312)),
        (Sharding.FSDP2, 4, 0),
    ],
)
def test_flat_shards_are_counted_as_blocks_of_the_allocator_if_asked_for(
    sharding: Sharding, ranks: int, rest_bytes: int
) -> None:
    wide = replace(TINY, vocab=2**22 + 2**16)
    run = replace(RUN, architecture=wide, sharding=sharding, degrees=Degrees(data=ranks))
    plain, counted = (peak_of(replace(run, counts_blocks=counts), Phase.STEP).parts for counts in (False, True))

    for part in (Part.PARAMETERS, Part.GRADIENTS):
        assert rest_bytes == counted[part] - plain[part]


def test_adapters_train_and_the_quantized_base_does_not() -> None:
    lora = Adapters(rank=2, targets=("q_proj",), dtype="float32")
    run = replace(RUN, compute_dtype="bfloat16", parameter_dtype="bfloat16", adapters=lora)
    run = replace(run, quantization=QuantizationName.INT8)
    parts = peak_of(run, Phase.STEP).parts
    adapter = 2 * (2 * 8 + 8 * 2) * 4  # blocks × (A and B of rank 2) × bytes
    assert adapter == parts[Part.ADAPTERS]
    assert 2 * adapter == parts[Part.OPTIMIZER]
    assert 2 * (BLOCK - 2 * 8) == parts[Part.QUANTIZED]
    assert 2 * (2 * 32 * 8 + 8 + 2 * 2 * 8) == parts[Part.PARAMETERS]


def test_what_is_updated_in_backward_needs_its_temporaries_there() -> None:
    assert 4 * 32 * 8 == peak_of(replace(RUN, in_backward=True), Phase.BACKWARD).parts[Part.STEP]


def test_checkpointed_blocks_leave_their_inputs() -> None:
    found = peak_of(replace(RUN, checkpointing=Checkpointing.BLOCK), Phase.LOSS)
    kept = 2 * (2 * 4 * 8 * 4)  # blocks × batch × tokens × hidden × bytes
    ids = 2 * 4 * 8  # kept by the embedding
    assert kept + ids == found.parts[Part.ACTIVATIONS]


def test_autocast_caches_copies_of_weights_until_forward_ends_also_where_blocks_are_checkpointed() -> None:
    run = replace(RUN, compute_dtype="bfloat16", checkpointing=Checkpointing.BLOCK)
    matrices = 2 * (BLOCK - 2 * 8) + 32 * 8  # of the blocks, and the output matrix
    assert 2 * matrices == peak_of(run, Phase.LOSS).parts[Part.COPIES]


def backward_by_hand(run: Run, place: str) -> dict[str, int]:
    """What is there besides working memory in a block's backward, as the step is followed."""
    return next(dict(one.parts) for one in moments(step_parts(run)) if one.phase == "backward" and place in one.where)


@pytest.mark.parametrize(
    ("sharding", "expected"), [(Sharding.FSDP2, 4 * (32 * 8 + 8)), (Sharding.ZERO3, 2 * (32 * 8 + 8))]
)
def test_the_roots_gradients_wait_whole_under_fsdp_until_backward_ends(sharding: Sharding, expected: int) -> None:
    # The output matrix of 32×8 and a norm of 8 in float32; of two ranks the half where they are reduced by themselves.
    # Wide feed-forward layers make the last block's backward the fullest moment.
    wide = replace(TINY, ffn=4096)
    run = replace(RUN, architecture=wide, sharding=sharding, degrees=Degrees(data=2), zero=ZeroBuckets(), length=64)

    assert expected == backward_by_hand(run, "block 1")["gradients"]


@pytest.mark.parametrize(("sharding", "kept"), [(Sharding.FSDP2, 4), (Sharding.NONE, 2)])
def test_groups_of_a_plan_keep_the_input_of_every_unit_of_fsdp(sharding: Sharding, kept: int) -> None:
    # Four blocks in groups of two; inputs of 2×4×8 float32. In the loss all that forward left is there, token ids too.
    run = replace(RUN, architecture=replace(TINY, layers=4), checkpointing=Checkpointing.BLOCK, group=2)
    run = replace(run, sharding=sharding, degrees=Degrees(data=2), is_planned=True)
    loss = next(one for one in moments(step_parts(run)) if one.phase == "loss")

    assert kept * 2 * 4 * 8 * 4 + 2 * 4 * 8 == loss.parts["saved"]


def test_the_entries_of_blocks_are_those_that_left_something_on_the_device() -> None:
    run = replace(RUN, architecture=replace(TINY, layers=6), checkpointing=Checkpointing.BLOCK)
    for changes in ({"offloads_inputs": True}, {"group": 4}, {"group": 4, "offloads_inputs": True}):
        found = phases_of(replace(run, **changes))
        assert all(entry.size_bytes > 0 for phase in found for entry in phase.entries), changes


def test_evaluation_keeps_no_activations() -> None:
    assert Part.ACTIVATIONS not in peak_of(RUN, Phase.EVALUATION).parts


RUNS = st.builds(
    Run,
    architecture=st.sampled_from(
        [TINY, replace(TINY, kv_heads=1), replace(TINY, tied=True), replace(TINY, gated=False, activation="gelu")]
    ),
    micro_batch=st.integers(1, 4),
    length=st.sampled_from([4, 16]),
    parameter_dtype=st.sampled_from(["float32", "bfloat16"]),
    compute_dtype=st.just("bfloat16"),
    optimizer=st.sampled_from(OptimizerName),
    step=st.sampled_from(OptimizerImplementation),
    in_backward=st.booleans(),
    checkpointing=st.sampled_from(Checkpointing),
    quantization=st.none(),
    adapters=st.sampled_from([None, Adapters(rank=2, targets=("q_proj", "down_proj"), dtype="float32")]),
    offloads_optimizer=st.booleans(),
)


@given(run=RUNS)
@settings(max_examples=40)
def test_more_micro_batch_never_lowers_the_estimate(run: Run) -> None:
    more = phases_of(replace(run, micro_batch=run.micro_batch + 1))
    for before, after in zip(phases_of(run), more, strict=True):
        assert before.size_bytes <= after.size_bytes


@given(run=RUNS)
@settings(max_examples=40)
def test_checkpointing_never_raises_what_forward_keeps(run: Run) -> None:
    kept = [
        peak_of(replace(run, checkpointing=mode), Phase.LOSS).parts[Part.ACTIVATIONS]
        for mode in (Checkpointing.BLOCK, Checkpointing.SELECTIVE, Checkpointing.NONE)
    ]
    assert sorted(kept) == kept


@given(run=RUNS)
@settings(max_examples=15)
def test_a_larger_device_never_has_a_worse_verdict(run: Run) -> None:
    order = [Verdict.OOM, Verdict.AT_RISK, Verdict.FITS]
    found = [
        order.index(estimate(run, replace(UNIT_DEVICE, memory_bytes=memory_bytes)).verdict)
        for memory_bytes in range(10**8, 2 * 10**9, 10**8)
    ]
    assert sorted(found) == found
    assert 0 == found[0]
    assert 2 == found[-1]


@given(run=RUNS, sharding=st.sampled_from([Sharding.NONE, Sharding.DDP, Sharding.FSDP2]))
@settings(max_examples=40)
def test_every_formula_gives_its_figure(run: Run, sharding: Sharding) -> None:
    run = replace(run, sharding=sharding, degrees=Degrees(data=1 if sharding is Sharding.NONE else 2))
    found = estimate(run, UNIT_DEVICE)
    sections = explain(found)
    for section in sections:
        for formula in section.formulas:
            assert formula.size_bytes == evaluated(formula), formula
    totals = [f.size_bytes for section in sections for f in section.formulas if f.name.endswith("in all")]
    assert [one.size_bytes for one in found.phases] == totals
    named = {f.name: f.size_bytes for f in sections[-1].formulas}
    assert found.total.high_bytes == named["device total, at most"]
    assert found.reserved.low_bytes == named["reserved, at least"]


def evaluated(formula: Formula) -> int:
    """The value of the formula as it is printed: numbers, each before its name."""
    total = 0
    for term in formula_text(formula).split(" + "):
        product = 1.0
        for factor in term.split(" × "):
            product *= float(factor.split()[0].replace(",", ""))
        total += round(product)
    return total
