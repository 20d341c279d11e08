"""DeepSpeed's JSON files: how they are recognised, and what they ask for."""

import json

import pytest

from planner.configs.facts import Facts, Sharding
from planner.configs.keys import unread_keys
from planner.configs.tree import SourceFormat
from tests.linting.dialects.reading import dialect_of, facts_of, read, values


def facts(**config: object) -> Facts:
    return facts_of(json.dumps({"train_batch_size": 32, "zero_optimization": {}, **config}), SourceFormat.JSON)


@pytest.mark.parametrize(
    "config",
    [
        {"zero_optimization": {"stage": 2}},
        {"train_batch_size": 8, "fp16": {"enabled": True}},
        {"train_micro_batch_size_per_gpu": "auto", "autotuning": {"enabled": True}},
    ],
)
def test_what_deepspeed_alone_has_makes_a_config(config: object) -> None:
    assert dialect_of(json.dumps(config), SourceFormat.JSON) == "deepspeed"


@pytest.mark.parametrize(
    "config",
    [
        {"train_batch_size": 8, "steps_per_print": 10},  # numbers alone: anybody's
        {"zero_optimization": {"stage": 1}, "train_batch_size": 4, "num_layers": 12, "hidden_size": 768},  # gpt-neox
        {"optimizer": {"type": "Adam"}, "fp16": True},
        {"fp16": True, "gradient_clipping": 1.0, "optimizer": "adam"},
    ],
)
def test_other_json_is_not_taken_for_it(config: object) -> None:
    assert dialect_of(json.dumps(config), SourceFormat.JSON) is None


def test_a_yaml_file_is_not_deepspeeds() -> None:
    assert dialect_of("zero_optimization: {stage: 2}\ntrain_batch_size: 8\n") is None


@pytest.mark.parametrize(
    ("zero", "sharding"),
    [
        ({}, Sharding.NONE),
        ({"stage": 1}, Sharding.OPTIMIZER),
        ({"stage": 2}, Sharding.GRADIENTS),
        ({"stage": 3}, Sharding.PARAMETERS),
        (True, Sharding.OPTIMIZER),
        ({"stage": "auto"}, None),
        ({"stage": 7}, None),
    ],
)
def test_the_stage_says_what_is_divided(zero: object, sharding: Sharding | None) -> None:
    assert values(facts(zero_optimization=zero), "sharding") == {"sharding": sharding}


def test_offload_counts_from_the_stage_that_reads_it() -> None:
    offload = {"offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "nvme"}}
    names = ("optimizer_offload", "parameter_offload")
    assert values(facts(zero_optimization={"stage": 2, **offload}), *names) == dict(
        zip(names, (True, False), strict=True)
    )
    assert values(facts(zero_optimization={"stage": 3, **offload}), *names) == dict(
        zip(names, (True, True), strict=True)
    )
    assert values(facts(zero_optimization={"stage": 0, **offload}), *names) == dict.fromkeys(names, False)


def test_auto_is_nothing_known() -> None:
    found = facts(train_micro_batch_size_per_gpu="auto", gradient_accumulation_steps=4, bf16={"enabled": "auto"})
    assert values(found, "micro_batch", "accumulation_steps", "compute_dtype") == {
        "micro_batch": None,
        "accumulation_steps": 4,
        "compute_dtype": None,
    }


def test_what_deepspeed_refuses_and_what_it_drops_are_told_apart() -> None:
    text = json.dumps(
        {
            "train_batch_size": 8,
            "same_network": True,
            "bf16": {"enabled": True, "loss_scale": 0},
            "elasticity": {"enabled": False},
            "activation_checkpointing": {"partitioned_activations": True},
        }
    )
    config = read(text, SourceFormat.JSON)
    assert config is not None
    assert {
        "same_network": "dropped",
        "bf16.loss_scale": "rejected",
        "elasticity": "rejected",
        "activation_checkpointing.partitioned_activations": "dropped",
    } == {key.setting.key: str(key.fate) for key in unread_keys(config)}
