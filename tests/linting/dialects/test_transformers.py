"""TrainingArguments in YAML, JSON and command lines: how they are recognised, and what they ask for."""

import pytest

from planner.configs.dialect import load_dialect
from planner.configs.facts import Checkpointing, Sharding
from planner.configs.tree import SourceFormat
from planner.linting.engine import Options, configs_of
from planner.linting.sources import parse
from tests.linting.dialects.reading import dialect_of, facts_of, read, values

CONFIG = """
output_dir: out
num_train_epochs: 1
per_device_train_batch_size: 2
gradient_accumulation_steps: 4
"""


def test_four_training_arguments_make_a_config_in_any_format_that_holds_them() -> None:
    assert dialect_of(CONFIG) == "transformers"
    json = '{"output_dir": "out", "num_train_epochs": 1, "per_device_train_batch_size": 2, "save_strategy": "no"}'
    assert dialect_of(json, SourceFormat.JSON) == "transformers"
    shell = "python train.py --output_dir out --num_train_epochs 1 --per_device_train_batch_size 2 --report_to none\n"
    assert dialect_of(shell, SourceFormat.SHELL) == "transformers"


@pytest.mark.parametrize(
    "text",
    [
        "output_dir: out\nper_device_train_batch_size: 2\nlogging_steps: 1\n",  # three of them: anybody's
        CONFIG + "checkpointing_steps: 100\n",  # open-instruct, and diffusers' scripts
        CONFIG + "finetuning_type: lora\n",  # LLaMA-Factory
        "output_dir: {value: out}\nnum_train_epochs: {value: 1}\nper_device_train_batch_size: {value: 2}\n"
        "report_to: {value: wandb}\nlogging_steps: {value: 1}\n",  # what wandb writes down of a run
    ],
)
def test_a_config_that_others_read_is_not_taken(text: str) -> None:
    assert dialect_of(text) is None


def test_what_is_left_out_has_the_default_of_training_arguments() -> None:
    facts = facts_of(CONFIG)
    assert values(facts, "micro_batch", "accumulation_steps", "eval_batch", "checkpointing", "compile") == {
        "micro_batch": 2,
        "accumulation_steps": 4,
        "eval_batch": 8,
        "checkpointing": Checkpointing.NONE,
        "compile": False,
    }
    assert facts.eval_batch is not None
    assert facts.eval_batch.setting is None


def test_a_launcher_may_decide_dtype_and_sharding_so_that_nothing_is_known_of_them() -> None:
    assert values(facts_of(CONFIG), "compute_dtype", "sharding", "parameter_offload") == {
        "compute_dtype": None,
        "sharding": None,
        "parameter_offload": None,
    }


def test_checkpointing_has_an_old_and_a_new_name_and_the_new_one_goes_first() -> None:
    old = facts_of(CONFIG + "gradient_checkpointing: true\n")
    both = facts_of(CONFIG + "gradient_checkpointing: true\nactivation_checkpointing: false\n")
    assert values(old, "checkpointing") == {"checkpointing": Checkpointing.FULL}
    assert values(both, "checkpointing") == {"checkpointing": Checkpointing.NONE}


@pytest.mark.parametrize(("release", "reentrant"), [((4, 57), True), ((5, 0), False)])
def test_checkpointing_is_reentrant_by_default_before_transformers_5(
    release: tuple[int, ...], *, reentrant: bool
) -> None:
    document = parse(CONFIG + "gradient_checkpointing: true\n", "a.yaml", SourceFormat.YAML)
    [config] = configs_of(document, Options(target_versions={"transformers": release}))
    assert values(config.facts, "reentrant") == {"reentrant": reentrant}


@pytest.mark.parametrize(
    ("fsdp", "sharding", "offload"),
    [
        ("fsdp: true", Sharding.PARAMETERS, None),
        ("fsdp: full_shard auto_wrap offload", Sharding.PARAMETERS, True),
        ("fsdp: [shard_grad_op]", Sharding.GRADIENTS, None),
        ("fsdp: true\nfsdp_config: {reshard_after_forward: false, cpu_offload: true}", Sharding.GRADIENTS, True),
        ("fsdp: no_shard", None, None),
        ("fsdp: ''", None, None),
        ("fsdp: false\nfsdp_config: {cpu_offload: true}", None, None),
    ],
)
def test_fsdp_shards_by_its_words_and_its_config(fsdp: str, sharding: Sharding | None, *, offload: bool | None) -> None:
    facts = facts_of(CONFIG + fsdp + "\n")
    assert values(facts, "sharding", "parameter_offload") == {"sharding": sharding, "parameter_offload": offload}


def test_checkpointing_by_fsdp_is_checkpointing() -> None:
    facts = facts_of(CONFIG + "fsdp: true\nfsdp_config: {fsdp_activation_checkpointing: true}\n")
    assert values(facts, "checkpointing") == {"checkpointing": Checkpointing.FULL}
    assert facts.checkpointing is not None
    assert facts.checkpointing.setting is not None
    assert facts.checkpointing.setting.key == "fsdp_activation_checkpointing"


def test_deepspeed_inline_says_what_the_arguments_do_not() -> None:
    facts = facts_of(
        CONFIG + "deepspeed:\n  zero_optimization: {stage: 2, offload_optimizer: {device: cpu}}\n"
        "  gradient_accumulation_steps: auto\n  bf16: {enabled: true}\n"
    )
    assert values(facts, "sharding", "optimizer_offload", "accumulation_steps", "compute_dtype") == {
        "sharding": Sharding.GRADIENTS,
        "optimizer_offload": True,
        "accumulation_steps": 4,
        "compute_dtype": "bfloat16",
    }


def test_a_key_of_a_script_is_nobodys_fault() -> None:
    config = read(CONFIG + "my_own_argument: 3\n")
    assert config is not None
    assert config.dialect.key_schema("my_own_argument") is None


def test_removed_keys_know_the_release_that_lost_them_and_what_came_instead() -> None:
    dialect = load_dialect("transformers")
    evaluation = dialect.key_schema("evaluation_strategy")
    assert evaluation is not None
    assert ("4.51.0", "eval_strategy") == (evaluation["x-removed"], evaluation["x-use"])
    assert all(
        dialect.key_schema(schema["x-use"]) is not None or schema["x-use"].startswith("fsdp_config.")
        for _, schema in dialect.known_keys()
        if "x-use" in schema
    )
