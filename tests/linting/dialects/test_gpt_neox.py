"""GPT-NeoX configs: how they are recognised, and what they ask for."""

import pytest

from tests.linting.dialects.reading import dialect_of, facts_of, values

CONFIG = """
{
  "pipe-parallel-size": 4,
  "model-parallel-size": 2,
  "num-layers": 12,
  "hidden-size": 768,
  "seq-length": 2048,
  "train_micro_batch_size_per_gpu": 4,
  "checkpoint-activations": true,
  "zero_optimization": {"stage": 1},
  "fp16": {"enabled": true}
}
"""


def test_sizes_of_a_model_and_of_its_parallelism_make_a_neox_config() -> None:
    assert dialect_of(CONFIG) == "gpt_neox"
    assert dialect_of(CONFIG.replace("-", "_")) == "gpt_neox"


def test_paths_of_data_alone_do_not() -> None:
    assert dialect_of('{"data_path": "data/enwik8", "train_iters": 100, "save": "checkpoints"}') is None


def test_dashes_are_underscores() -> None:
    assert values(
        facts_of(CONFIG),
        "pipeline_parallel", "tensor_parallel", "sequence_length", "micro_batch", "checkpointing", "sharding",
        "compute_dtype", "accumulation_steps", "sequence_parallel",
    ) == {
        "pipeline_parallel": 4,
        "tensor_parallel": 2,
        "sequence_length": 2048,
        "micro_batch": 4,
        "checkpointing": "full",
        "sharding": "optimizer",
        "compute_dtype": "float16",
        "accumulation_steps": None,  # another file may say it
        "sequence_parallel": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("attention", "expected"),
    [
        ('[[["flash"], "all"]]', "flash"),
        ('[[["global"], 12]]', "eager"),
        ('[[["global", "local"], 6]]', None),
        ('[[["rwkv"], 12]]', "other"),
    ],
)
def test_attention_is_known_where_all_layers_have_the_same(attention: str, expected: str | None) -> None:
    text = CONFIG.replace('"seq-length": 2048', f'"seq-length": 2048, "attention_config": {attention}')
    assert values(facts_of(text), "attention") == {"attention": expected}
