"""Mixtures of experts and latent attention: by hand, and against traced steps."""

from dataclasses import replace
from typing import Any

import pytest

from planner.architecture import parameter_count
from planner.estimation.blocks import Section
from planner.estimation.estimate import sections_of, static_of
from planner.estimation.parallel import DegreesError
from planner.estimation.ranks import ranks_of
from planner.estimation.run import Degrees, Run, Sharding
from planner.estimation.step import Checkpointing, kept_tensors
from planner.estimation.tape import Tensor
from planner.estimation.verdict import Verdict, estimate
from planner.families import architecture_of
from tests.estimation.specs import Mapping
from tests.estimation.test_agreement import agrees
from tests.steps import UNIT_DEVICE

MIXTRAL: Mapping = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "vocab_size": 512,
}
_LARGER: Mapping = {
    **MIXTRAL,
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 8000,
}
_DEEPSEEK: Mapping = {
    "num_hidden_layers": 3,
    "first_k_dense_replace": 1,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "hidden_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "intermediate_size": 2048,
    "moe_intermediate_size": 512,
    "kv_lora_rank": 128,
    "vocab_size": 8000,
}
TRACED: dict[str, tuple[str, Mapping]] = {
    "mixtral": ("MixtralForCausalLM", _LARGER),
    "qwen3-moe": (
        "Qwen3MoeForCausalLM",
        {
            **{k: v for k, v in _LARGER.items() if k != "num_local_experts"},
            "num_experts": 16,
            "num_experts_per_tok": 4,
            "moe_intermediate_size": 256,
            "head_dim": 64,
        },
    ),
    "deepseek-v3": (
        "DeepseekV3ForCausalLM",
        {**_DEEPSEEK, "n_group": 4, "topk_group": 2, "q_lora_rank": 256, "n_shared_experts": 1},
    ),
    "deepseek-v2": ("DeepseekV2ForCausalLM", {**_DEEPSEEK, "q_lora_rank": None, "n_shared_experts": 2}),
}


def run_of(config: Mapping = MIXTRAL, **changes: Any) -> Run:
    settings: dict[str, Any] = {
        "architecture": architecture_of("mixtral", config),
        "micro_batch": 1,
        "length": 64,
        "parameter_dtype": "bfloat16",
        "compute_dtype": "bfloat16",
        "autocast": False,
    }
    return Run(**{**settings, **changes})


def kept(run: Run) -> dict[str, Tensor]:
    block: Section = sections_of(run)[1][-1]
    return {t.name: t for t in kept_tensors(block, Checkpointing.NONE)}


@pytest.mark.parametrize(("name", "config"), TRACED.values(), ids=TRACED)
def test_experts_and_latent_attention_agree_with_the_traced_step(name: str, config: Mapping) -> None:
    agrees(
        {
            "model": {"transformers": name, "config": config},
            "batch": {"micro_batch": 1, "sequence_length": 512},
            "precision": {"parameters": "bfloat16"},
        }
    )


def test_experts_save_each_token_as_often_as_it_is_sent() -> None:
    found = kept(run_of())
    # 64 tokens, 2 experts each: 128 assignments.
    assert 128 * 64 * 2 == found["permuted tokens"].size_bytes
    assert 128 * 2 * 128 * 2 == found["experts.gate_up_proj"].size_bytes
    assert 128 * 128 * 2 == found["gated"].size_bytes
    assert 64 * 8 * 4 == found["router probabilities"].size_bytes  # in float32


def test_ranks_that_share_experts_have_a_part_of_them_and_as_many_tokens() -> None:
    run = run_of(degrees=Degrees(data=4, expert=4))
    experts = 8 * 3 * 64 * 128  # of a layer
    assert parameter_count(run.architecture) - 2 * experts * 3 // 4 == ranks_of(run)[0].parameters
    found = kept(run)
    assert 128 * 64 * 2 == found["dispatched tokens"].size_bytes
    assert "permuted tokens" not in found  # what was sent is let go


def test_a_rank_with_twice_its_share_of_tokens_saves_twice_as_much_for_its_experts() -> None:
    even, uneven = (kept(run_of(degrees=Degrees(data=4, expert=4), imbalance=factor)) for factor in (1.0, 2.0))
    for name in ("dispatched tokens", "experts.gate_up_proj", "gated"):
        assert 2 * even[name].size_bytes == uneven[name].size_bytes
    assert even["attention"].size_bytes == uneven["attention"].size_bytes


def test_whole_experts_on_tensor_parallel_ranks_have_whole_matrices() -> None:
    run = run_of(degrees=Degrees(data=2, tensor=2, expert=4, expert_tensor=1))
    divided = replace(run, degrees=Degrees(data=2, tensor=2, expert=2))
    assert static_of(run).parameters == static_of(divided).parameters


def test_the_first_layers_of_deepseek_are_dense() -> None:
    run = run_of(architecture=architecture_of("deepseek_v3", {**_DEEPSEEK, "n_shared_experts": 1, "q_lora_rank": 256}))
    first, second, third = sections_of(run)[1]
    assert second is third
    assert not [t for t in first.tape.tensors if t.name.startswith("experts.")]
    assert [t for t in second.tape.tensors if t.name.startswith("experts.")]


@pytest.mark.parametrize(
    ("degrees", "ranks", "of"),
    [(Degrees(data=3, expert=3), 3, 8), (Degrees(data=2, expert=4), 4, 2), (Degrees(tensor=2, expert=2), 4, 2)],
)
def test_ranks_that_cannot_share_experts_are_refused(degrees: Degrees, ranks: int, of: int) -> None:
    with pytest.raises(DegreesError) as error:
        ranks_of(run_of(degrees=degrees))
    assert ("expert", ranks, of) == (error.value.degree, error.value.ranks, error.value.of)


def test_it_fits_only_where_the_router_may_send_one_rank_all_that_it_can() -> None:
    run = run_of(degrees=Degrees(data=4, expert=4), sharding=Sharding.FSDP2, micro_batch=64, length=512)
    # A token chooses 2 of 8 experts, and a rank has 2: all of the 4 ranks' assignments may be for it.
    even, uneven = (estimate(replace(run, imbalance=factor), UNIT_DEVICE) for factor in (1.0, 4.0))
    higher = round((uneven.peak.size_bytes - even.peak.size_bytes) * 1.25)
    enough = even.total.high_bytes + higher
    assert Verdict.FITS is estimate(run, replace(UNIT_DEVICE, memory_bytes=enough)).verdict
    found = estimate(run, replace(UNIT_DEVICE, memory_bytes=enough - 1))
    assert Verdict.AT_RISK is found.verdict
    assert found.reason.startswith("it runs while the router is fair: with 4 times their share of tokens")
