"""Lightning CLI configs: how they are recognised, and what their trainers ask for."""

import pytest

from tests.linting.dialects.reading import dialect_of, facts_of, values

CONFIG = """
trainer:
  strategy: {strategy}
  precision: bf16-mixed
  accumulate_grad_batches: 4
model:
  class_path: my_package.LanguageModel
"""


def test_a_trainer_beside_a_class_path_makes_a_lightning_config() -> None:
    assert dialect_of(CONFIG.format(strategy="ddp")) == "lightning"
    assert dialect_of("seed_everything: 1\ntrainer:\n  max_steps: 10\n") == "lightning"


@pytest.mark.parametrize(
    "text",
    [
        "trainer:\n  devices: 1\nmodel:\n  encoder_seq_length: 512\nexp_manager: {}\n",  # NeMo
        "trainer:\n  _target_: lightning.Trainer\nseed_everything: 1\n",  # hydra
        "trainer:\n  total_epochs: 15\ndata:\n  train_batch_size: 8\n",  # verl
        "seed_everything: 1\ntrainer:\n  rounds: 3\n",  # a trainer of one's own
        "seed_everything: 1\ntrainer:\n  class_path: my_package.Trainer\n  init_args: {devices: 2}\n",
    ],
)
def test_trainers_of_other_frameworks_do_not(text: str) -> None:
    assert dialect_of(text) != "lightning"


@pytest.mark.parametrize(
    ("strategy", "sharding", "optimizer_offload", "parameter_offload"),
    [
        ("ddp_find_unused_parameters_false", "none", None, None),
        ("fsdp", "parameters", None, None),
        ("fsdp_cpu_offload", "parameters", True, True),
        ("deepspeed_stage_1", "optimizer", None, None),
        ("deepspeed_stage_2_offload", "gradients", True, False),
        ("deepspeed_stage_3_offload", "parameters", True, True),
        ("{class_path: FSDPStrategy, init_args: {sharding_strategy: SHARD_GRAD_OP}}", "gradients", False, False),
        ("{class_path: my_package.Strategy}", None, None, None),
        ("auto", None, None, None),
    ],
)
def test_a_strategy_says_what_is_shared_and_what_is_offloaded(
    strategy: str, sharding: str | None, optimizer_offload: bool | None, parameter_offload: bool | None
) -> None:
    facts = facts_of(CONFIG.replace("{strategy}", strategy))
    assert values(facts, "sharding", "optimizer_offload", "parameter_offload") == {
        "sharding": sharding,
        "optimizer_offload": optimizer_offload,
        "parameter_offload": parameter_offload,
    }


def test_the_module_decides_on_checkpointing_unless_fsdp_is_told() -> None:
    told = "{class_path: FSDPStrategy, init_args: {activation_checkpointing_policy: [my_package.Block]}}"
    assert values(facts_of(CONFIG.format(strategy="fsdp")), "checkpointing", "accumulation_steps", "compute_dtype") == {
        "checkpointing": None,
        "accumulation_steps": 4,
        "compute_dtype": "bfloat16",
    }
    assert values(facts_of(CONFIG.replace("{strategy}", told)), "checkpointing") == {"checkpointing": "full"}
