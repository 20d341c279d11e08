"""Megatron-LM's arguments, in YAML and in scripts: how they are recognised, and what they ask for."""

import pytest

from planner.configs.megatron import cores
from planner.configs.tree import SourceFormat
from tests.linting.dialects.reading import dialect_of, facts_of, read, values

CONFIG = """
ENV_VARS:
  CUDA_DEVICE_MAX_CONNECTIONS: 1
MODEL_ARGS:
  --num-layers: 12
  --seq-length: 4096
  --micro-batch-size: 2
  --tensor-model-parallel-size: 2
  --sequence-parallel: true
  --attention-backend: unfused
  --recompute-granularity: full
  --recompute-method: uniform
  --recompute-num-layers: 1
  --use-distributed-optimizer: true
  --bf16: true
TEST_TYPE: regular
"""
SCRIPT = """
export CUDA_DEVICE_MAX_CONNECTIONS=1
MODEL=(
    --num-layers 32
    --hidden-size 4096
    --seq-length 8192
)
torchrun --nproc_per_node 8 pretrain_gpt.py "${MODEL[@]}" --micro-batch-size 1 --use-megatron-fsdp
"""


def test_arguments_below_model_args_and_flags_in_a_script_are_recognised() -> None:
    assert dialect_of(CONFIG) == "megatron"
    assert dialect_of(SCRIPT, SourceFormat.SHELL) == "megatron"


@pytest.mark.parametrize(
    "text", ["MODEL_ARGS:\n  num_layers: 12\n", "MODEL_ARGS:\n- --num-layers\n", "- MODEL_ARGS\n", "model: {}\n"]
)
def test_model_args_without_flags_are_somebody_elses(text: str) -> None:
    assert dialect_of(text) is None


def test_a_script_with_few_flags_or_those_of_megatron_deepspeed_is_not_recognised() -> None:
    assert dialect_of("python convert.py --num-layers 32 --hidden-size 4096\n", SourceFormat.SHELL) is None
    assert dialect_of(SCRIPT.replace("--use-megatron-fsdp", "--deepspeed"), SourceFormat.SHELL) is None


def test_names_stand_without_their_dashes_and_places_are_theirs() -> None:
    config = read(CONFIG)
    assert config is not None
    setting = config.get("seq-length")
    assert setting is not None
    assert "seq-length" == CONFIG[setting.at_key.start : setting.at_key.end]
    assert "4096" == CONFIG[setting.at_value.start : setting.at_value.end]


def test_the_environment_is_read_from_both() -> None:
    for text, source_format in ((CONFIG, SourceFormat.YAML), (SCRIPT, SourceFormat.SHELL)):
        config = read(text, source_format)
        assert config is not None
        assert 1 == config.environment["CUDA_DEVICE_MAX_CONNECTIONS"].value


def test_sizes_degrees_and_kinds_are_read() -> None:
    assert {
        "sequence_length": 4096,
        "micro_batch": 2,
        "tensor_parallel": 2,
        "pipeline_parallel": 1,
        "context_parallel": 1,
        "sequence_parallel": True,
        "attention": "eager",
        "checkpointing": "full",
        "sharding": "optimizer",
        "compute_dtype": "bfloat16",
    } == values(
        facts_of(CONFIG),
        "sequence_length", "micro_batch", "tensor_parallel", "pipeline_parallel", "context_parallel",
        "sequence_parallel", "attention", "checkpointing", "sharding", "compute_dtype",
    )  # fmt: skip


def test_fsdp_shards_parameters_unless_told_otherwise() -> None:
    assert {"sharding": "parameters"} == values(facts_of(SCRIPT, SourceFormat.SHELL), "sharding")
    other = SCRIPT.replace("--use-megatron-fsdp", "--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads")
    assert {"sharding": "gradients"} == values(facts_of(other, SourceFormat.SHELL), "sharding")


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("", "none"),
        ("--recompute-activations", "selective"),
        ("--recompute-granularity selective", "selective"),
        ("--moe-layer-recompute", "selective"),
        ("--recompute-granularity $KIND", None),
        ("--use-checkpoint-args", None),
        ('"$@"', None),
    ],
)
def test_what_is_recomputed_is_known_only_where_the_script_says_it(flags: str, expected: str | None) -> None:
    text = SCRIPT.replace("--use-megatron-fsdp", flags)
    assert {"checkpointing": expected} == values(facts_of(text, SourceFormat.SHELL), "checkpointing")


def test_what_a_checkpoint_or_an_argument_may_say_has_no_default() -> None:
    for flags in ("--use-checkpoint-args", '"$@"'):
        config = read(SCRIPT.replace("--use-megatron-fsdp", flags), SourceFormat.SHELL)
        assert config is not None
        (core,) = cores(config)
        assert core.number("tensor_model_parallel_size") is None
        assert not core.is_off("recompute_method")
        assert 8192 == core.number("seq_length")
