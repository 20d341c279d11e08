"""Files for accelerate launch: how they are recognised, and what they ask for."""

import pytest

from planner.configs.facts import Checkpointing, Sharding
from tests.linting.dialects.reading import dialect_of, facts_of, values

CONFIG = "compute_environment: LOCAL_MACHINE\nmixed_precision: bf16\nnum_processes: 8\n"


@pytest.mark.parametrize(
    "text",
    [
        CONFIG + "distributed_type: FSDP\n",
        "distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 3}\n",
        "compute_environment: AMAZON_SAGEMAKER\ndistributed_type: NO\n",
    ],
)
def test_a_distributed_type_makes_a_config(text: str) -> None:
    assert dialect_of(text) == "accelerate"


@pytest.mark.parametrize(
    "text",
    [CONFIG, "distributed_type: FSDP\nlearning_rate: 1\nmodel: x\n", "distributed_type: {a: b}\nnum_processes: 1\n"],
)
def test_without_one_or_with_nothing_else_of_accelerates_it_is_none(text: str) -> None:
    assert dialect_of(text) is None


@pytest.mark.parametrize(
    ("fsdp", "sharding"),
    [
        ("{fsdp_version: 2}", Sharding.PARAMETERS),
        ("{fsdp_version: '2', fsdp_reshard_after_forward: false}", Sharding.GRADIENTS),
        ("{fsdp_sharding_strategy: 2}", Sharding.GRADIENTS),
        ("{sharding_strategy: NO_SHARD}", Sharding.NONE),
        ("{fsdp_reshard_after_forward: false}", Sharding.PARAMETERS),  # FSDP1 does not read it
        ("{fsdp_version: auto}", None),
    ],
)
def test_fsdp_shards_by_the_keys_of_its_version(fsdp: str, sharding: Sharding | None) -> None:
    facts = facts_of(CONFIG + f"distributed_type: FSDP\nfsdp_config: {fsdp}\n")
    assert values(facts, "sharding", "ranks", "compute_dtype") == {
        "sharding": sharding,
        "ranks": 8,
        "compute_dtype": "bfloat16",
    }


def test_checkpointing_and_offload_of_fsdp_are_facts_and_their_absence_is_not() -> None:
    on = CONFIG + "distributed_type: FSDP\nfsdp_config: {activation_checkpointing: 'true', offload_params: true}\n"
    assert values(facts_of(on), "checkpointing", "parameter_offload") == {
        "checkpointing": Checkpointing.FULL,
        "parameter_offload": True,
    }
    off = CONFIG + "distributed_type: FSDP\nfsdp_config: {fsdp_activation_checkpointing: false}\n"
    assert values(facts_of(off), "checkpointing") == {"checkpointing": None}  # the training may do it itself


def test_a_part_counts_only_with_its_distributed_type() -> None:
    parts = "megatron_lm_config: {megatron_lm_tp_degree: 4}\ndeepspeed_config: {zero_stage: 3}\n"
    plain = facts_of(CONFIG + "distributed_type: MULTI_GPU\n" + parts)
    assert values(plain, "tensor_parallel", "sharding") == {"tensor_parallel": None, "sharding": None}
    megatron = facts_of(CONFIG + "distributed_type: MEGATRON_LM\n" + parts)
    assert values(megatron, "tensor_parallel", "sharding") == {"tensor_parallel": 4, "sharding": None}
    deepspeed = facts_of(CONFIG + "distributed_type: DEEPSPEED\n" + parts)
    assert values(deepspeed, "tensor_parallel", "sharding") == {
        "tensor_parallel": None,
        "sharding": Sharding.PARAMETERS,
    }


def test_zero_2_is_the_default_stage() -> None:
    facts = facts_of(CONFIG + "distributed_type: DEEPSPEED\ndeepspeed_config: {offload_optimizer_device: cpu}\n")
    assert values(facts, "sharding", "optimizer_offload") == {"sharding": Sharding.GRADIENTS, "optimizer_offload": True}
