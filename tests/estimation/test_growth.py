"""What one block keeps, by tensor and length."""

import json

import pytest
from click.testing import CliRunner

from planner.cli import main
from planner.estimation.blocks import AttentionKind
from planner.estimation.growth import BlockGrowth, growth
from planner.estimation.run import Run
from planner.families import architecture_of

GIB = 2**30
GPT_3 = architecture_of("gpt2", {"n_embd": 12288, "n_head": 96, "n_layer": 96, "n_positions": 2048})


def run(**changes: object) -> Run:
    settings = {"architecture": GPT_3, "micro_batch": 1, "length": 2048, **changes}
    return Run(**{"parameter_dtype": "float16", "compute_dtype": "float16", **settings})  # type: ignore[arg-type]


def grown(*lengths: int) -> tuple[BlockGrowth, BlockGrowth]:
    eager, fused = growth(run(), lengths)
    return eager, fused


def test_gpt_3_keeps_what_its_sizes_multiply_to() -> None:
    eager, _ = grown(2048)
    kept = {t.name: t.size_bytes[0] for t in eager.tensors}
    assert 3 * 2048 * 12288 * 2 == kept["qkv_proj"]
    assert 96 * 2048 * 2048 * 2 == kept["attention softmax"] == kept["attention dropout"] == eager.scores_bytes[0]
    assert 96 * 2048 * 2048 == kept["attention dropout mask"]
    assert 2048 * 4 * 12288 * 2 == kept["up_proj"]
    assert 2048 * 12288 * 2 == eager.input_bytes[0]
    assert 0.75 * GIB == kept["attention softmax"]


def test_only_what_has_a_score_for_each_pair_of_tokens_grows_with_the_square() -> None:
    eager, fused = grown(1024, 2048)
    squares = {t.name for t in eager.tensors if t.power == 2}
    assert {"attention softmax", "attention dropout", "attention dropout mask"} == squares
    assert {1} == {t.power for t in fused.tensors}
    for one in (*eager.tensors, *fused.tensors):
        assert 2**one.power * one.size_bytes[0] == one.size_bytes[1]


def test_with_a_fused_kernel_attention_keeps_q_k_v_the_output_and_a_number_for_each_query() -> None:
    _, fused = grown(2048)
    assert AttentionKind.FUSED is fused.attention
    assert (4 * 2048 * 12288 * 2) + 2048 * 96 * 4 == fused.attention_bytes[0]
    assert (0,) == fused.scores_bytes == fused.quadratic_bytes


def test_powers_are_known_from_one_length() -> None:
    assert {1, 2} == {t.power for t in grown(333)[0].tensors}


def test_cast_weights_are_no_activations() -> None:
    autocast = run(parameter_dtype="float32", compute_dtype="bfloat16")
    for one in growth(autocast, [512]):
        assert not [t.name for t in one.tensors if "weight" in t.name.split()[0]]
        assert {1, 2} >= {t.power for t in one.tensors}


def test_more_checkpointing_never_keeps_more() -> None:
    for one in grown(128, 4096):
        for place in range(2):
            assert one.input_bytes[place] <= one.selective_bytes[place] <= one.kept_bytes[place]


def test_the_command_prints_the_same_as_its_json() -> None:
    arguments = ["estimate", "llama-3-8b", "--lengths", "512, 4096"]
    text = CliRunner().invoke(main, arguments)
    data = CliRunner().invoke(main, [*arguments, "--json"])
    assert 0 == text.exit_code == data.exit_code
    document = json.loads(data.stdout)
    assert [512, 4096] == document["lengths"]
    eager, fused = document["kernels"]
    assert ["eager", "fused"] == [eager["attention"], fused["attention"]]
    for kernel in (eager, fused):
        assert kernel["kept_bytes"] == [sum(t["bytes"][place] for t in kernel["tensors"]) for place in (0, 1)]
        assert all(t["name"] in text.stdout for t in kernel["tensors"])
    assert f"{eager['attention_bytes'][1] / fused['attention_bytes'][1]:.1f}" in text.stdout


@pytest.mark.parametrize("lengths", ["0", "", "a", "512,", "-1", "1.5", "9" * 30])
def test_what_is_no_list_of_lengths_is_refused(lengths: str) -> None:
    result = CliRunner().invoke(main, ["estimate", "llama-3-8b", "--lengths", lengths])
    assert 2 == result.exit_code
    assert "whole numbers" in result.stderr


def test_lengths_with_explain_is_refused() -> None:
    result = CliRunner().invoke(main, ["estimate", "llama-3-8b", "--lengths", "512", "--explain"])
    assert 2 == result.exit_code
    assert "--explain" in result.stderr
