"""verl's trainers, in YAML and as overrides in scripts: how they are recognised, and what they ask for."""

from planner.configs.megatron import cores
from planner.configs.tree import SourceFormat
from tests.linting.dialects.reading import dialect_of, facts_of, read, values

FSDP = """
actor_rollout_ref:
  model:
    path: Qwen/Qwen2.5-7B
    enable_gradient_checkpointing: false
  actor:
    strategy: fsdp2
    ppo_micro_batch_size_per_gpu: 4
    fsdp_config:
      optimizer_offload: true
  rollout:
    gpu_memory_utilization: 0.6
    max_model_len: 16384
"""
MEGATRON = """
actor_rollout_ref:
  actor:
    strategy: megatron
    megatron:
      tensor_model_parallel_size: 4
      override_transformer_config:
        recompute_granularity: full
        recompute_method: uniform
        recompute_num_layers: 1
  ref:
    megatron:
      tensor_model_parallel_size: 2
"""
SCRIPT = """
python3 -m verl.trainer.main_ppo \\
    data.max_prompt_length=1024 \\
    actor_rollout_ref.model.path=Qwen/Qwen2.5-7B \\
    actor_rollout_ref.rollout.gpu_memory_utilization=0.8
"""


def test_an_actor_with_its_rollout_is_verl_in_yaml_and_in_a_script() -> None:
    assert dialect_of(FSDP) == "verl"
    assert dialect_of(SCRIPT, SourceFormat.SHELL) == "verl"


def test_a_part_that_others_include_is_not_recognised() -> None:
    assert dialect_of("_target_: verl.workers.config.HFModelConfig\npath: ~/models\n") is None
    assert dialect_of("actor_rollout_ref: none\n") is None


def test_actor_and_rollout_are_read() -> None:
    assert {
        "model": "Qwen/Qwen2.5-7B",
        "micro_batch": 4,
        "checkpointing": "none",
        "optimizer_offload": True,
        "sharding": "parameters",
        "kv_memory_fraction": 0.6,
        "max_context": 16384,
    } == values(
        facts_of(FSDP),
        "model", "micro_batch", "checkpointing", "optimizer_offload", "sharding", "kv_memory_fraction", "max_context",
    )  # fmt: skip
    assert {"kv_memory_fraction": 0.8} == values(facts_of(SCRIPT, SourceFormat.SHELL), "kv_memory_fraction")


def test_the_actors_megatron_is_read_and_every_models_has_its_settings() -> None:
    assert {"checkpointing": "full", "tensor_parallel": 4, "pipeline_parallel": 1} == values(
        facts_of(MEGATRON), "checkpointing", "tensor_parallel", "pipeline_parallel"
    )
    config = read(MEGATRON)
    assert config is not None
    assert [4, 2] == [core.number("tensor_model_parallel_size") for core in cores(config)]
