"""Which techniques make sense for a model, how they are named, and what they change."""

from dataclasses import replace
from itertools import product

import pytest

from planner.estimation.blocks import AttentionKind, Loss
from planner.estimation.run import Degrees, Run
from planner.estimation.step import Checkpointing
from planner.families import architecture_of
from planner.spec import AttentionKernel, OptimizerName
from planner.techniques import (
    Applicable,
    Keeping,
    Setup,
    alone,
    changes_of,
    closed_form,
    closed_form_peak,
    in_words,
    indivisible,
    together,
)

EVERYTHING = Applicable(attends=True, is_known=True, is_decoder=True, has_8bit=True, has_blocks=True)
NOTHING = Applicable(attends=False, is_known=False, is_decoder=False, has_8bit=False, has_blocks=False)
OWN = Setup(attention=AttentionKernel.FLASH)


def run(**changes: object) -> Run:
    config = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 8, "num_key_value_heads": 2}
    architecture = architecture_of("LlamaForCausalLM", {**config, "num_hidden_layers": 4, "vocab_size": 100})
    return replace(Run(architecture=architecture, micro_batch=1, length=120), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("bits", list(product([False, True], repeat=5)))
@pytest.mark.parametrize("attention", [AttentionKernel.FLASH, AttentionKernel.EAGER])
def test_no_setup_comes_twice_and_names_tell_all_apart(bits: tuple[bool, ...], attention: AttentionKernel) -> None:
    it = Applicable(**dict(zip(Applicable.__slots__, bits, strict=True)))
    own = Setup(attention=attention)
    setups = [own, *alone(own, it), *together(own, it)]

    assert len(setups) == len(set(setups)) == len({in_words(setup, own) for setup in setups})
    assert all(1 == len(changes_of(setup, own, group=2)) for setup in alone(own, it))
    assert all(2 <= len(changes_of(setup, own, group=2)) for setup in together(own, it))


def test_a_model_with_nothing_to_choose_has_offloading_and_the_plan() -> None:
    assert [Keeping.OFFLOAD_ALL, Keeping.PLAN] == [setup.keeping for setup in alone(OWN, NOTHING)]
    assert () == together(OWN, NOTHING)


def test_combinations_never_keep_attention_scores() -> None:
    eager = Setup(attention=AttentionKernel.EAGER)

    assert {AttentionKernel.FLASH} == {setup.attention for setup in together(eager, EVERYTHING)}


def test_another_fused_kernel_is_left_as_it_is() -> None:
    cudnn = Setup(attention=AttentionKernel.CUDNN)

    assert {AttentionKernel.CUDNN} == {setup.attention for setup in together(cudnn, EVERYTHING)}


def test_one_technique_has_its_full_name_and_several_have_short_ones() -> None:
    assert "as it is" == in_words(OWN, OWN)
    assert "every block" == in_words(replace(OWN, keeping=Keeping.BLOCK), OWN)
    several = replace(OWN, keeping=Keeping.BLOCK, loss=Loss.FUSED_LINEAR, is_8bit=True, context=4)
    assert "block, fused linear, 8-bit, CP 4" == in_words(several, OWN)


def test_changes_are_what_one_writes_in_the_spec() -> None:
    setup = Setup(attention=AttentionKernel.EAGER, keeping=Keeping.ROOT, is_8bit=True, sequence=2)

    assert (
        "attention: eager",
        "checkpointing: {every: 3}",
        "optimizer: {name: adamw-8bit}",
        "parallel: {tp: 2, sp: true}",
    ) == changes_of(setup, OWN, group=3)


def test_the_closed_form_of_a_setup_says_the_same_of_the_run() -> None:
    setup = Setup(attention=AttentionKernel.EAGER, keeping=Keeping.ROOT, loss=Loss.CHUNKED, is_8bit=True, sequence=2)
    found = closed_form(run(), setup, group=2)

    assert found is not None
    assert (Checkpointing.BLOCK, 2, True) == (found.checkpointing, found.group, found.is_planned)
    assert (AttentionKind.EAGER, Loss.CHUNKED, False) == (found.attention, found.loss, found.logits_stay)
    assert (OptimizerName.ADAMW_8BIT, Degrees(tensor=2, sequence=True)) == (found.optimizer, found.degrees)


def test_the_closed_form_of_the_spec_as_it_is_is_its_run() -> None:
    assert run() == closed_form(run(), OWN, group=2)


@pytest.mark.parametrize("keeping", [Keeping.OFFLOAD_ALL, Keeping.OFFLOAD_INPUTS, Keeping.PLAN])
def test_rules_that_the_closed_form_lacks_have_none(keeping: Keeping) -> None:
    assert closed_form(run(), replace(OWN, keeping=keeping), group=2) is None


def test_autocast_caches_the_casts_of_checkpointed_blocks_until_the_loss_is_there() -> None:
    # With the loss in one kernel, the peak is where all chunks of a wide vocabulary meet, in forward.
    config = {"hidden_size": 8, "intermediate_size": 16, "num_attention_heads": 2, "num_hidden_layers": 3}
    wide = architecture_of("LlamaForCausalLM", {**config, "vocab_size": 100_000})
    cast = run(architecture=wide, compute_dtype="bfloat16", loss=Loss.FUSED, checkpointing=Checkpointing.BLOCK)
    whole = replace(cast, autocast=False)
    # q, k, v and o of 8 × 8, gate, up and down of 8 × 16, two bytes each, in three blocks.
    cached_bytes = 3 * (4 * 8 * 8 + 3 * 8 * 16) * 2

    def uncached_bytes(run: Run) -> int:
        from planner.estimation.estimate import step_moments

        return max(moment.size_bytes for moment in step_moments(run))

    assert "loss, logits shifted" == closed_form_peak(cast)[1]
    assert cached_bytes == closed_form_peak(cast)[0] - uncached_bytes(cast)
    assert 0 == closed_form_peak(whole)[0] - uncached_bytes(whole)


@pytest.mark.parametrize(
    ("setup", "why"),
    [
        (replace(OWN, sequence=4), None),  # four ranks repeat two key heads
        (replace(OWN, sequence=3), "3 ranks cannot share 8 heads"),
        (replace(OWN, sequence=16), "16 ranks cannot share 8 heads"),
        (replace(OWN, context=16), "16 ranks cannot share 120 tokens"),
        (replace(OWN, context=8), None),
    ],
)
def test_ranks_share_what_they_divide(setup: Setup, why: str | None) -> None:
    assert why == indivisible(run(), setup)
