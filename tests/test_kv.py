"""The KV cache: sizes worked out by hand, properties of what fits, claims, and the command as a user meets it."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from planner.architecture import Architecture, parameter_count
from planner.cli import main
from planner.estimation.kv import (
    Fit,
    KvBudget,
    KvSetting,
    activation_peak_bytes,
    attention_of,
    attentions,
    compare_formats,
    fit,
    heads_per_rank,
    held_tokens,
    layer_groups,
    layer_token_bytes,
    sequence_bytes,
    stages,
    weights_bytes,
)
from planner.estimation.kv_claims import ClaimedSizes, Verdict, judge, rounding, slips
from planner.estimation.kv_formats import FORMATS, KvError, kv_format, vector_bytes, weight_format
from planner.families import ConfigError, architecture_of
from planner.presets import load_preset

ROOT = Path(__file__).parent.parent
GIB = 2**30

LLAMA_3_8B = {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32}
TINY = architecture_of(
    "LlamaForCausalLM",
    {
        "vocab_size": 10,
        "hidden_size": 8,
        "intermediate_size": 16,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    },
)  # a token: 2 × 2 heads × 2 wide × 2 B = 16 B a layer
GEMMA_2_2B = architecture_of("Gemma2ForCausalLM", {})  # 26 layers, every other with a window of 4,096; 4 heads of 256


def preset(name: str) -> Architecture:
    found = load_preset(name)
    return architecture_of(found.transformers, found.config)


def setting(context_tokens: int = 8192, *, dtype: str = "bf16", **more: int) -> KvSetting:
    return KvSetting(context_tokens=context_tokens, how=kv_format(dtype), **more)


def budget(cache_bytes: int, stages: int = 1) -> KvBudget:
    """One that leaves so much for the cache."""
    return KvBudget(memory_bytes=cache_bytes, fraction=1.0, weights_bytes=(0,) * stages)


def fitting(a: Architecture, how: KvSetting, cache_bytes: int) -> Fit:
    return fit(a, attention_of(a), how, budget(cache_bytes, how.pipeline))


def token_bytes(a: Architecture, how: KvSetting) -> int:
    return fitting(a, how, 0).token_bytes


# ---- bytes, by hand


@pytest.mark.parametrize(
    ("expected", "name"),
    [
        (131_072, "llama-3-8b"),  # 2 × 32 layers × 8 heads × 128 × 2 B
        (524_288, "llama-2-7b"),  # 2 × 32 × 32 × 128 × 2
        (327_680, "llama-3-70b"),  # 2 × 80 × 8 × 128 × 2
        (147_456, "qwen3-8b"),  # 2 × 36 × 8 × 128 × 2
        (36_864, "gpt2"),  # 2 × 12 × 12 × 64 × 2
    ],
)
def test_a_token_takes_a_key_and_a_value_of_every_head_and_layer(expected: int, name: str) -> None:
    assert expected == token_bytes(preset(name), setting(1024))


def test_latent_attention_keeps_one_vector_for_all_heads_whole_on_every_rank() -> None:
    deepseek_v3 = architecture_of("DeepseekV3ForCausalLM", {})
    assert 61 * (512 + 64) * 2 == 70_272 == token_bytes(deepseek_v3, setting())
    assert 70_272 == token_bytes(deepseek_v3, setting(tensor=8))
    multi_head = attentions(deepseek_v3)[0]
    assert 128 * (192 + 128) * 2 == layer_token_bytes(multi_head, kv_format("bf16"), heads=128)


def test_layers_with_a_window_hold_no_more_than_it() -> None:
    per_layer = 2 * 4 * 256 * 2
    assert (
        13 * per_layer * 32_768 + 13 * per_layer * 4_096
        == fitting(GEMMA_2_2B, setting(32_768, block_tokens=1), 0).sequence_bytes
    )
    # Blocks of 16: a window of 4,096 that ends anywhere touches 257 of them.
    assert 13 * per_layer * (32_768 + 257 * 16) == fitting(GEMMA_2_2B, setting(32_768), 0).sequence_bytes
    # A sequence within the window has nothing to drop.
    assert 26 * per_layer * 4_096 == fitting(GEMMA_2_2B, setting(4_096), 0).sequence_bytes


@pytest.mark.parametrize(
    ("expected", "tokens", "window", "block"),
    [
        (10, 10, 0, 1),
        (16, 10, 0, 16),
        (16, 16, 0, 16),
        (32, 17, 0, 16),
        (4, 10, 4, 1),
        (8, 100, 5, 4),
        (12, 100, 6, 4),
        (8, 5, 5, 4),
    ],
)
def test_tokens_are_held_in_whole_blocks_and_windows_in_those_they_touch(
    expected: int, tokens: int, window: int, block: int
) -> None:
    assert expected == held_tokens(tokens, window, block)


def test_a_window_touches_exactly_as_many_blocks_as_counting_them_gives() -> None:
    for window in range(1, 12):
        for block in range(1, 8):
            ends = range(window, window + 3 * block)
            touched = max(len({token // block for token in range(end - window, end)}) for end in ends)
            assert touched * block == held_tokens(10**6, window, block)


@pytest.mark.parametrize(
    ("expected", "name"),
    [
        (256, "bf16"),
        (128, "fp8"),
        (132, "int8"),  # and a float32 scale: 1.03125 B an element
        (68, "int4"),  # and half-precision scale and zero
        (136, "q8_0"),  # 34 B per 32
        (72, "q4_0"),  # 18 B per 32
        (72, "nvfp4"),  # 9 B per 16
    ],
)
def test_formats_count_their_scales(expected: int, name: str) -> None:
    assert expected == vector_bytes(kv_format(name), 128)


def test_a_format_in_blocks_refuses_a_width_that_is_no_multiple() -> None:
    with pytest.raises(KvError, match="blocks of 32 elements, and a head's vector has 80"):
        vector_bytes(FORMATS["q8_0"], 80)
    phi = architecture_of("PhiForCausalLM", {"hidden_size": 2560})  # heads 80 wide
    rows = compare_formats(phi, setting(), budget(10**9))
    assert ["bf16", "fp8", "int8", "int4"] == [row.name for row in rows]


# ---- ranks


@pytest.mark.parametrize(("expected", "ranks"), [(8, 1), (4, 2), (1, 8), (1, 16), (1, 64)])
def test_ranks_divide_key_and_value_heads_and_then_repeat_them(expected: int, ranks: int) -> None:
    assert expected == heads_per_rank(8, ranks, heads=64)


def test_ranks_that_cannot_share_the_heads_are_refused_with_those_that_can() -> None:
    with pytest.raises(KvError, match="64 attention heads cannot be shared by 3 ranks; use one of 1, 2, 4, 8"):
        heads_per_rank(8, 3, heads=64)
    with pytest.raises(KvError, match=r"4 key and value heads .* by 6 ranks.*use one of 1, 2, 4, 12"):
        heads_per_rank(4, 6, heads=12)


def test_stages_and_context_ranks_divide_layers_and_tokens() -> None:
    assert [range(11), range(11, 22), range(22, 32)] == list(stages(32, 3))
    llama = preset("llama-3-8b")
    assert 11 * 4096 == token_bytes(llama, setting(pipeline=3))
    assert 131_072 * 4096 == fitting(llama, setting(8192, context=2), 0).sequence_bytes
    with pytest.raises(KvError, match="use at most 32"):
        stages(32, 33)


@pytest.mark.parametrize(
    "name", ["DeepseekV3ForCausalLM", "Gemma2ForCausalLM", "GPT2LMHeadModel", "MixtralForCausalLM"]
)
def test_weights_on_one_gpu_are_all_parameters(name: str) -> None:
    a = architecture_of(name, {})
    assert (2 * parameter_count(a),) == weights_bytes(a, weight_format("bf16"))
    assert (4 * parameter_count(a),) == weights_bytes(a, weight_format("fp32"))


def test_ranks_divide_matrices_and_keep_norms_and_a_key_head_each() -> None:
    # TINY, bf16: embedding and output 80 + 80; a layer: q, o 64 each; k, v 32 each; gate, up, down 128; norms 8 + 8.
    assert (2 * (160 + 3 * (64 + 64 + 32 + 32 + 3 * 128 + 16) + 8),) == weights_bytes(TINY, weight_format("bf16"))
    assert (2 * (80 + 3 * (32 + 32 + 16 + 16 + 3 * 64 + 16) + 8),) == weights_bytes(
        TINY, weight_format("bf16"), tensor=2
    )
    # On four ranks there are two heads with keys and values, so each is held twice.
    assert (2 * (40 + 3 * (16 + 16 + 16 + 16 + 3 * 32 + 16) + 8),) == weights_bytes(
        TINY, weight_format("bf16"), tensor=4
    )


def test_only_linear_layers_are_quantized() -> None:
    assert (2 * (160 + 3 * 16 + 8) + 3 * (64 + 64 + 32 + 32 + 3 * 128),) == weights_bytes(TINY, weight_format("fp8"))


def test_a_tied_output_matrix_is_in_the_last_stage_too() -> None:
    gpt2 = preset("gpt2")
    first, last = weights_bytes(gpt2, weight_format("bf16"), pipeline=2)
    assert 2 * (parameter_count(gpt2) + 50_257 * 768) == first + last


# ---- what fits


def test_what_fits_of_a_tiny_model_is_what_counting_blocks_gives() -> None:
    # 3 layers × 16 B = 48 B a token; blocks of 4: 192 B; a sequence of 10 tokens: 3 blocks, 576 B.
    found = fitting(TINY, setting(10, block_tokens=4), 2000)
    assert (48, 576) == (found.token_bytes, found.sequence_bytes)
    assert 10 * 4 == found.tokens == found.longest_tokens
    assert 3 == found.sequences
    # The first 9 tokens are alike: 2 whole blocks once, 384 B; then one block for each sequence.
    shared = fitting(TINY, setting(10, block_tokens=4, prefix_tokens=9), 2000)
    assert (384, 192) == (shared.shared_bytes, shared.sequence_bytes)
    assert (2000 - 384) // 192 == 8 == shared.sequences
    assert 384 + 8 * 192 == shared.needed_bytes(8)


def test_the_published_log_of_an_8b_llama_is_met_within_a_percent() -> None:
    # llm-d-benchmark, empirical-vllm-memory-results.md: 79.18 GiB × 0.9, non-torch 0.13 GiB: 51.38 GiB for the cache.
    a = preset("llama-3-8b")
    memory_bytes = int(79.18 * GIB)
    found = KvBudget(
        memory_bytes=memory_bytes,
        fraction=0.9,
        weights_bytes=weights_bytes(a, weight_format("bf16")),
        activations_bytes=activation_peak_bytes(a, memory_bytes),
        reserved_bytes=int(0.13 * GIB),
    )
    assert 51.38 * GIB == pytest.approx(found.cache_bytes(0), rel=0.01)


def test_a_model_whose_layers_all_have_windows_takes_sequences_of_any_length() -> None:
    mistral = architecture_of("MistralForCausalLM", {})
    assert {4096} == set(mistral.windows)
    assert fitting(mistral, setting(100_000), 10 * GIB).longest_tokens is None
    assert 1_000 > (fitting(mistral, setting(100), 131_072 * 1_000).longest_tokens or 0) > 900


def test_weights_that_do_not_fit_leave_nothing() -> None:
    found = fitting(TINY, setting(10), -5)
    assert (0, 0, 0) == (found.sequences, found.tokens, found.longest_tokens)


ARCHITECTURES = st.sampled_from(
    [TINY, GEMMA_2_2B, preset("llama-3-8b"), architecture_of("MistralForCausalLM", {"num_hidden_layers": 5})]
)
SETTINGS = st.builds(
    setting,
    st.integers(1, 50_000),
    dtype=st.sampled_from(["bf16", "fp8", "int8"]),
    block_tokens=st.sampled_from([1, 3, 16, 256]),
    tensor=st.sampled_from([1, 2, 4]),
    pipeline=st.integers(1, 3),
    context=st.integers(1, 3),
)


@given(a=ARCHITECTURES, how=SETTINGS, share=st.floats(0, 0.999), cache_bytes=st.integers(-(10**6), 10**12))
def test_what_fits_never_takes_more_than_there_is_and_one_more_would(
    a: Architecture, how: KvSetting, share: float, cache_bytes: int
) -> None:
    how = replace(how, prefix_tokens=int(share * how.context_tokens))
    found = fitting(a, how, cache_bytes)
    if found.sequences:
        assert found.needed_bytes(found.sequences) <= cache_bytes
    assert found.needed_bytes(found.sequences + 1) > cache_bytes
    if found.longest_tokens:
        assert sequence_bytes(found.groups, how, found.longest_tokens) <= cache_bytes
    if found.longest_tokens is not None:
        assert sequence_bytes(found.groups, how, found.longest_tokens + 1) > cache_bytes
    if not any(group.window_tokens for group in found.groups):
        assert found.tokens // how.context * found.token_bytes <= max(0, cache_bytes)


@given(a=ARCHITECTURES, how=SETTINGS, cache_bytes=st.integers(0, 10**11), more=st.integers(0, 10**11))
def test_more_memory_never_fits_less(a: Architecture, how: KvSetting, cache_bytes: int, more: int) -> None:
    less, enough = fitting(a, how, cache_bytes), fitting(a, how, cache_bytes + more)
    assert less.sequences <= enough.sequences
    assert less.tokens <= enough.tokens
    if less.longest_tokens is None:
        assert enough.longest_tokens is None


@given(a=ARCHITECTURES, how=SETTINGS, times=st.integers(1, 8), cache_bytes=st.integers(0, 10**11))
def test_blocks_that_are_a_multiple_never_fit_more(
    a: Architecture, how: KvSetting, times: int, cache_bytes: int
) -> None:
    larger = replace(how, block_tokens=how.block_tokens * times)
    assert fitting(a, larger, cache_bytes).sequences <= fitting(a, how, cache_bytes).sequences


@given(a=ARCHITECTURES, how=SETTINGS, share=st.floats(0, 0.999), cache_bytes=st.integers(0, 10**12))
def test_a_shared_prefix_of_one_sequence_costs_at_most_the_window_blocks_that_it_keeps(
    a: Architecture, how: KvSetting, share: float, cache_bytes: int
) -> None:
    shared = replace(how, prefix_tokens=int(share * how.context_tokens))
    without, found = fitting(a, how, cache_bytes), fitting(a, shared, cache_bytes)
    assert found.sequence_bytes <= without.sequence_bytes
    if not any(a.windows):
        assert without.needed_bytes(1) == found.needed_bytes(1)
        assert without.sequences <= found.sequences


# ---- which layers have a window


def test_configs_say_which_layers_have_a_window() -> None:
    assert (4096, 0, 4096, 0) == GEMMA_2_2B.windows[:4]
    gemma_3 = architecture_of("Gemma3ForCausalLM", {"num_hidden_layers": 7, "sliding_window": 512})
    assert (512, 512, 512, 512, 512, 0, 512) == gemma_3.windows
    kinds = ["full_attention", "sliding_attention"]
    listed = architecture_of("Gemma3ForCausalLM", {"num_hidden_layers": 2, "layer_types": kinds})
    assert (0, 4096) == listed.windows
    qwen = {"num_hidden_layers": 4, "sliding_window": 100, "max_window_layers": 3}
    assert (0, 0, 0, 0) == architecture_of("Qwen2ForCausalLM", qwen).windows
    assert (0, 0, 0, 100) == architecture_of("Qwen2ForCausalLM", {**qwen, "use_sliding_window": True}).windows
    assert (0,) * 32 == preset("mistral-7b").windows
    phi_3 = architecture_of("Phi3ForCausalLM", {"sliding_window": 2047, "num_hidden_layers": 2})
    assert (2047, 2047) == phi_3.windows


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_hidden_layers", 0),
        ("num_hidden_layers", 10**6),
        ("num_attention_heads", "32"),
        ("num_attention_heads", True),
        ("num_attention_heads", 10**7),
        ("num_key_value_heads", -8),
        ("num_key_value_heads", 5),
        ("hidden_size", None),
        ("hidden_size", 4096.0),
        ("head_dim", 0),
        ("vocab_size", 10**30),
    ],
)
def test_sizes_that_no_model_has_are_errors(key: str, value: object) -> None:
    with pytest.raises(ConfigError):
        architecture_of("LlamaForCausalLM", {**LLAMA_3_8B, key: value})


@pytest.mark.parametrize("kinds", ["abc", ["full_attention"], ["linear_attention"] * 26, [{}] * 26, 7])
def test_layer_types_that_are_none_are_errors(kinds: object) -> None:
    with pytest.raises(ConfigError):
        architecture_of("Gemma2ForCausalLM", {"layer_types": kinds})


# ---- claims

LLAMA_70B = ClaimedSizes(
    layers=80,
    kv_heads=8,
    element_bytes=2.0,
    heads_sharing=8,
    multi_head_factor=8.0,
    token_bytes=327_680,
    tokens=131_072,
)
RIGHT_BYTES = 327_680 * 131_072


@pytest.mark.parametrize(
    ("expected", "stated_bytes", "text"),
    [
        (Verdict.AGREES, RIGHT_BYTES, "42,949,672,960 B"),
        (Verdict.AGREES, 42_900_000_000, "42.9 GB"),
        (Verdict.ROUNDED, 43_000_000_000 + 400_000_000, "43 GB"),
        (Verdict.DIFFERS, 42_000_000_000, "42.00 GB"),
        (Verdict.WRONG, 21_000_000_000, "21 GB"),
    ],
)
def test_a_figure_is_judged_to_the_digits_it_is_stated_with(expected: Verdict, stated_bytes: int, text: str) -> None:
    assert expected == judge(stated_bytes, RIGHT_BYTES, (), rounding_bytes=rounding(text, stated_bytes)).verdict


@pytest.mark.parametrize(
    ("expected", "factor"),
    [
        ("counts every attention head (MHA)", 8),
        ("counts keys or values, not both", 1 / 2),
        ("counts one layer", 1 / 80),
        ("counts one token", 1 / 131_072),
        ("counts 4 B an element, not 2", 2),
        ("takes one head with keys and values (MQA)", 1 / 8),
        ("takes Llama 2 7B's 524,288 B a token, divided by the 8 heads", 1 / 5),
        ("says GB and means GiB", (1000 / 1024) ** 3),
    ],
)
def test_a_wrong_figure_is_traced_to_the_slip_that_gives_it(expected: str, factor: float) -> None:
    found = judge(round(RIGHT_BYTES * factor), RIGHT_BYTES, slips(LLAMA_70B))
    assert Verdict.WRONG == found.verdict
    assert any(reason.startswith(expected) for reason in found.reasons)


def test_a_figure_that_takes_two_slips_names_both_and_one_that_no_slip_gives_none() -> None:
    both = judge(round(RIGHT_BYTES / 160), RIGHT_BYTES, slips(LLAMA_70B))
    assert "counts keys or values, not both and counts one layer" in both.reasons
    assert () == judge(round(RIGHT_BYTES * 333.3), RIGHT_BYTES, slips(LLAMA_70B)).reasons


@pytest.mark.parametrize(
    ("expected", "text", "stated_bytes"),
    [
        (5e9, "340 GB", 340 * 10**9),
        (5e7, "42.9 GB", 42_900_000_000),
        (500, "~65 KB/token", 65_000),
        (0.5, "131,072 B/token", 131_072),
        (0, "about a lot", 5),
    ],
)
def test_a_figure_leaves_half_of_its_last_digit_open(expected: float, text: str, stated_bytes: int) -> None:
    assert expected == pytest.approx(rounding(text, stated_bytes))


FORM = """id,model,layers,kv_heads,head_dim,kv_dtype,bytes_per_elem,tp,tokens,reported,reported_bytes,kind,notes
a,Llama-3-8B,32,8,128,f16,2,1,2048,256 MiB,268435456,engine log,
b,a 70B,80,8,128,bf16,2,8,16384,640 MB,671088640,paper,
c,28 layers,28,8,128,int8+scales,1.03125,1,1000,59.1 MB,59136000,measured,
d,Llama-3.1-70B,80,8,128,bf16,2,1,131072,340 GB,340000000000,blog,
e,Llama-2-70B,80,8,128,fp16,2,1,1,~65 KB/token,65000,blog,
f,unknown,,,,fp8,,1,1000,1 MB,1000000,blog,
g,odd,80,8,100,q8_0,1.06,1,10,1 MB,1000000,blog,
h,qwen2.5-coder:32b,,,,f16,,1,4096,20331 MiB total,21318598656,gpu total,
i,qwen2.5-coder:32b,,,,f16,,1,8192,21683 MiB total,22736273408,gpu total,
j,qwen2.5-coder:32b,,,,f16,,1,16384,99999 MiB total,104856551424,gpu total,
k,gemma,,,,bf16,,1,,"weights 8.58, activation peak 9.96, non-torch 0.07, CUDA graph 0.65 GiB; x of 178.36 GiB x0.9",\
151519866880,engine log,
l,-,,,,fp8,1,1,262144,8.79 GiB fp8 vs 17.6 GiB bf16,9438190633,doc,
m,DeepSeek-V3,61,1,576,bf16,2,8,1,"70,272 B",70272,doc,
"""


def benchmark(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(ROOT / "benchmarks" / "kv_accuracy.py"), *arguments]
    return subprocess.run(command, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)


def test_the_benchmark_judges_what_rows_state_and_refuses_the_rest_with_the_reason(tmp_path: Path) -> None:
    form = tmp_path / "form.csv"
    form.write_text(FORM)
    document = json.loads(benchmark(str(form), "--json").stdout)
    found = {row["id"]: row for row in document["findings"]}

    verdicts = {id: row["verdict"] for id, row in found.items()}
    refused, agrees, wrong = "refused", "agrees", "wrong"
    assert verdicts == {
        **dict.fromkeys("abcklmi", agrees),
        **dict.fromkeys("de", wrong),
        **dict.fromkeys("fghj", refused),
    }
    assert "every attention head" in found["d"]["why"][0]
    assert "Llama 2 7B's 524,288 B" in found["e"]["why"][0]
    assert ["not stated: layers, key and value heads, head width; it comes to 1,000 B a token"] == found["f"]["why"]
    assert "blocks of 32" in found["g"]["why"][0]
    assert 262_144 + 512 * 4 * 41 == found["i"]["predicted"] == found["i"]["reported"]
    assert 9 == document["summary"]["judged"]


def test_the_benchmark_says_in_one_line_what_is_wrong_with_a_file(tmp_path: Path) -> None:
    (tmp_path / "bad.csv").write_text("id,model\n1,2\n")
    for name in ("bad.csv", "none.csv"):
        result = benchmark(str(tmp_path / name))
        assert 1 == result.returncode
        assert 1 == len(result.stderr.splitlines())


# ---- the command


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(main, ["kv", *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def document(*arguments: str, status: int = 0) -> dict[str, Any]:
    result = run(*arguments, "--json")
    assert status == result.exit_code, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def refused(*arguments: str) -> str:
    result = run(*arguments)
    assert 2 == result.exit_code, result.output
    assert "" == result.stdout
    (line,) = result.stderr.splitlines()
    assert line.startswith("planner: error: ")
    return line.removeprefix("planner: error: ")


def test_a_preset_a_spec_and_a_config_of_the_same_model_give_the_same() -> None:
    Path("spec.yaml").write_text("model: {preset: llama-3-8b}\ndevice: a100-40gb\n")
    Path("with-batch.yaml").write_text("model: {preset: llama-3-8b}\nbatch: {micro_batch: 3}\ndevice: a100-40gb\n")
    config = {**load_preset("llama-3-8b").config, "architectures": ["LlamaForCausalLM"]}
    Path("config.json").write_text(json.dumps(config))
    Path("typed.json").write_text(json.dumps({**config, "architectures": None, "model_type": "llama"}))
    found = [
        document(*arguments)
        for arguments in (
            ("llama-3-8b", "--device", "a100-40gb"),
            ("spec.yaml",),
            ("with-batch.yaml",),
            ("config.json", "--device", "a100-40gb"),
            ("typed.json", "--device", "a100-40gb"),
        )
    ]
    for one in found:
        del one["model"]
    assert all(one == found[0] for one in found)
    assert 131_072 == found[0]["token_bytes"]
    assert "a100-40gb" == found[0]["device"]


def test_every_number_is_explained_by_a_formula_that_gives_it() -> None:
    cache = ("--weights", "10GB", "--activations", "1GB", "--reserve", "1GB", "--memory", "20GB")
    found = document("llama-3-8b", *cache, "--memory-fraction", "0.9", "--shared-prefix", "1030", "--sequences", "2")
    figures = {figure["name"]: figure for figure in found["figures"]}

    assert 6_000_000_000 == found["budget"]["cache_bytes"] == figures["left for the KV cache"]["value"]
    assert (
        "18,000,000,000 − 10,000,000,000 − 1,000,000,000 − 1,000,000,000"
        == (figures["left for the KV cache"]["formula"])
    )
    assert "2 (key, value) × 8 heads × 128 × 2 B × 32 layers" == figures["bytes a token"]["formula"]
    assert 1024 * 131_072 == found["shared_bytes"] == figures["bytes of the shared prefix"]["value"]
    assert "32 layers × 4,096 B × 7,168 tokens" == figures["bytes of a sequence beside the prefix"]["formula"]
    assert 1024 * 131_072 + 2 * 7168 * 131_072 == found["needed_bytes"]
    assert 6_000_000_000 // (16 * 131_072) * 16 == found["tokens"]
    assert all(figure["source"] for figure in found["figures"])

    explained = run("llama-3-8b", "--explain").stdout
    assert "bytes a token = 2 (key, value) × 8 heads × 128 × 2 B × 32 layers\n    = 131,072 B" in explained
    latent = run("llama-3-8b").stdout
    assert "bytes a token =" not in latent


def test_the_tables_show_what_fewer_heads_and_smaller_formats_are_worth() -> None:
    found = document("llama-3-8b")
    assert [("MHA", 524_288), ("GQA", 131_072), ("MQA", 16_384), ("MLA", 36_864)] == [
        (row["name"], row["token_bytes"]) for row in found["attentions"]
    ]
    assert [1.0, 0.5, 0.515625, 0.53125, 0.265625, 0.28125] == [row["relative"] for row in found["formats"]]
    assert [0.25] == [row["relative"] for row in found["attentions"] if row["is_this"]]


def test_sequences_that_do_not_fit_exit_with_1_and_the_numbers() -> None:
    assert document("llama-3-8b", "--sequences", "40")["is_enough"]
    assert not document("llama-3-8b", "--sequences", "4000", status=1)["is_enough"]
    assert "DO NOT FIT" in run("llama-3-8b", "--sequences", "4000").stdout
    nothing = run("llama-3-70b")
    assert 1 == nothing.exit_code
    assert "weights and activations alone take" in nothing.stdout


def test_a_claim_is_judged() -> None:
    said = run("llama-3-70b", "--tp", "8", "--context", "131072", "--claim", "5.4GB", "--device", "h200").stdout
    assert "5,400,000,000 B agrees to the digits stated: it is 5,368,709,120 B" in said
    found = document(
        "llama-3-70b", "--tp", "1", "--context", "131072", "--claim", "340GB", "--device", "h200", status=1
    )
    assert "wrong" == found["claim"]["verdict"]
    assert found["claim"]["reasons"][0].startswith("counts every attention head (MHA)")


def test_mistakes_are_told_in_one_line_with_the_way_out() -> None:
    assert "did you mean 'llama-3-8b'?" in refused("llama-3-9b")
    assert "no such file" in refused("none.yaml")
    assert "use one of 1, 2, 4, 8" in refused("llama-3-8b", "--tp", "3")
    assert "use at most 32" in refused("llama-3-8b", "--pp", "33")
    assert "did you mean 'fp8'?" in refused("llama-3-8b", "--dtype", "fp9")
    assert "--weights: unknown weight format 'small'" in refused("llama-3-8b", "--weights", "small")
    assert "--weights: '10' has no unit" in refused("llama-3-8b", "--weights", "10")
    assert "--claim: " in refused("llama-3-8b", "--claim", "0GB")
    assert "--memory: " in refused("llama-3-8b", "--memory", "-1GB")
    assert "--shared-prefix: 8,192 tokens leave nothing" in refused("llama-3-8b", "--shared-prefix", "8192")
    assert "unknown device ''" in refused("llama-3-8b", "--device", "")
    assert "is not a transformer decoder whose sizes are known; such as LlamaForCausalLM" in refused("vit-l")


@pytest.mark.parametrize(
    ("expected", "text"),
    [
        (
            "bert is an encoder: it reads all tokens at once and has no KV cache",
            "model: {transformers: BertForMaskedLM}",
        ),
        ("spec.yaml:1: model.factory: what a function builds", "model: {factory: 'a:b'}"),
        (
            "spec.yaml:4: model.config.num_hidden_layers: expected a whole number from 1 to 10,000, found 0",
            "model:\n  preset: llama-3-8b\n  config:\n    num_hidden_layers: 0",
        ),
        ("32 attention heads cannot share 5", "model: {preset: llama-3-8b, config: {num_key_value_heads: 5}}"),
        ("did you mean 'h100-80gb'", "model: {preset: gpt2}\ndevice: h100-80"),
        ("has 80; use a format without blocks", "model: {transformers: PhiForCausalLM, config: {hidden_size: 2560}}"),
    ],
)
def test_specs_that_have_no_cache_are_told_with_their_line(expected: str, text: str) -> None:
    Path("spec.yaml").write_text(text + "\n")
    assert expected in refused("spec.yaml", "--dtype", "q8_0")


@pytest.mark.parametrize("text", ["[]", "{}", "3", '{"architectures": []}', '{"architectures": [1]}', "{", ""])
def test_configs_that_are_none_are_told(text: str) -> None:
    Path("config.json").write_text(text)
    assert "config.json" in refused("config.json")


@pytest.mark.parametrize(
    "arguments",
    [
        ("--context", "0"),
        ("--context", "99999999999"),
        ("--sequences", "-1"),
        ("--block-size", "0"),
        ("--memory-fraction", "0"),
        ("--memory-fraction", "nan"),
        ("--memory-fraction", "1.1"),
        ("--tp", "0"),
    ],
)
def test_absurd_sizes_are_usage_errors(arguments: tuple[str, str]) -> None:
    assert 2 == run("llama-3-8b", *arguments).exit_code


def test_the_command_imports_neither_torch_nor_a_solver() -> None:
    code = (
        "import sys\n"
        "from click.testing import CliRunner\n"
        "from planner.cli import main\n"
        "assert CliRunner().invoke(main, ['kv', 'llama-3-8b', '--explain']).exit_code == 0\n"
        "print(*sorted({'torch', 'transformers', 'ortools', 'networkx', 'numpy'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", code]
    assert "" == subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def test_groups_of_layers_are_those_of_the_stage() -> None:
    (full, windowed) = layer_groups(GEMMA_2_2B, attention_of(GEMMA_2_2B), setting(), range(3))
    assert (1, 0) == (full.layers, full.window_tokens)
    assert (2, 4096) == (windowed.layers, windowed.window_tokens)
