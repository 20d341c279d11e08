"""Options of vLLM and SGLang: how they are recognised, and what they ask for."""

import pytest

from planner.configs.tree import SourceFormat
from tests.linting.dialects.reading import dialect_of, facts_of, values

VLLM = "model: Qwen/Qwen3-8B\nmax-model-len: 32768\nmax_num_seqs: 64\ngpu-memory-utilization: 0.8\n"
SGLANG = "model-path: Qwen/Qwen3-8B\ncontext-length: 32768\nmem-fraction-static: 0.85\nkv-cache-dtype: fp8_e5m2\n"


def test_flat_options_with_dashes_or_underscores_are_recognised() -> None:
    assert dialect_of(VLLM) == "vllm"
    assert dialect_of(VLLM.replace("-", "_")) == "vllm"
    assert dialect_of(SGLANG) == "sglang"


@pytest.mark.parametrize(
    "text",
    [
        "model: Qwen/Qwen3-8B\nmax-model-len: 32768\n",
        VLLM + "dataset: data.jsonl\n",
        VLLM + "mem-fraction-static: 0.8\n",
        "vllm_gpu_memory_utilization: 0.3\nvllm_max_model_len: 4096\n",
        "engine:\n  max-model-len: 32768\n  max-num-seqs: 64\n",
    ],
)
def test_one_option_or_those_of_something_else_are_not(text: str) -> None:
    assert dialect_of(text) is None


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("vllm serve Qwen/Qwen3-8B --max-model-len 32768\n", "vllm"),
        ("python -m vllm.entrypoints.openai.api_server --model Qwen/Qwen3-8B\n", "vllm"),
        ("vllm bench serve --model Qwen/Qwen3-8B\n", None),
        ("python -m sglang.launch_server --model-path Qwen/Qwen3-8B\n", "sglang"),
        ("python -m sglang.bench_serving --backend sglang\n", None),
    ],
)
def test_servers_are_recognised_in_scripts(command: str, expected: str | None) -> None:
    assert dialect_of(command, SourceFormat.SHELL) == expected


def test_memory_context_and_sequences_are_read() -> None:
    assert {"model": "Qwen/Qwen3-8B", "kv_memory_fraction": 0.8, "max_context": 32768, "max_sequences": 64} == values(
        facts_of(VLLM), "model", "kv_memory_fraction", "max_context", "max_sequences"
    )
    assert {"model": "Qwen/Qwen3-8B", "kv_memory_fraction": 0.85, "max_context": 32768, "kv_dtype": "fp8_e5m2"} == (
        values(facts_of(SGLANG), "model", "kv_memory_fraction", "max_context", "kv_dtype")
    )


def test_a_share_that_is_left_out_is_vllms_default() -> None:
    text = VLLM.replace("gpu-memory-utilization: 0.8\n", "")
    assert {"kv_memory_fraction": 0.92} == values(facts_of(text), "kv_memory_fraction")
