"""torchtitan's TOML files: how they are recognised, and what they ask for."""

import pytest

from planner.configs.keys import unread_keys
from planner.configs.tree import SourceFormat
from tests.linting.dialects.reading import dialect_of, facts_of, read, values

CONFIG = """
[model]
name = "llama3"
flavor = "8B"

[training]
local_batch_size = 2
seq_len = 8192

[parallelism]
tensor_parallel_degree = 4
"""


def test_its_sections_make_a_torchtitan_config() -> None:
    assert dialect_of(CONFIG, SourceFormat.TOML) == "torchtitan"


def test_words_of_anybody_or_another_format_do_not() -> None:
    assert dialect_of("[model]\nname = 'x'\n[training]\nsteps = 3\n[parallelism]\ntp = 2\n", SourceFormat.TOML) is None
    assert dialect_of("[training]\nseq_len = 1\n[project]\nname = 'x'\n", SourceFormat.TOML) is None
    assert dialect_of("model: {name: llama3}\ntraining: {seq_len: 1}\nparallelism: {}\n") is None


def test_defaults_are_facts_too() -> None:
    assert values(
        facts_of(CONFIG, SourceFormat.TOML),
        "model", "micro_batch", "sequence_length", "tensor_parallel", "sequence_parallel", "pipeline_parallel",
        "checkpointing", "compile", "compute_dtype", "parameter_dtype", "sharding", "data_parallel", "eval_batch",
    ) == {
        "model": "meta-llama/Meta-Llama-3-8B",
        "micro_batch": 2,
        "sequence_length": 8192,
        "tensor_parallel": 4,
        "sequence_parallel": True,
        "pipeline_parallel": 1,
        "checkpointing": "selective",
        "compile": False,
        "compute_dtype": "bfloat16",
        "parameter_dtype": "float32",
        "sharding": "parameters",
        "data_parallel": None,
        "eval_batch": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ("[compile]\nenable = true", True),
        ('[compile]\nenable = true\ncomponents = ["loss"]', False),
        ("[compile]\nenable = false", False),
    ],
)
def test_compiling_the_loss_alone_is_not_compiling_the_model(section: str, expected: bool) -> None:
    assert values(facts_of(f"{CONFIG}\n{section}\n", SourceFormat.TOML), "compile") == {"compile": expected}


def test_replicas_without_shards_share_nothing() -> None:
    text = f"{CONFIG}data_parallel_replicate_degree = 8\ndata_parallel_shard_degree = 1\n"
    assert values(facts_of(text, SourceFormat.TOML), "sharding") == {"sharding": "none"}


def test_a_validation_that_is_on_has_a_batch() -> None:
    text = f"{CONFIG}\n[validation]\nenable = true\n"
    assert values(facts_of(text, SourceFormat.TOML), "eval_batch") == {"eval_batch": 8}


def test_code_that_the_config_names_may_add_keys() -> None:
    own = f'{CONFIG}img_size = 256\n\n[job]\ncustom_config_module = "my_package.job_config"\n'
    plain = read(f"{CONFIG}img_size = 256\n", SourceFormat.TOML)
    extended = read(own, SourceFormat.TOML)
    assert plain is not None
    assert extended is not None
    assert ["parallelism.img_size"] == [key.setting.key for key in unread_keys(plain)]
    assert () == unread_keys(extended)
