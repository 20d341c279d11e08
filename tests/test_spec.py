"""A spec file becomes a record, or one sentence that says what to change and where."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import DeviceError, LocatedError, PlannerError, SpecError
from planner.spec import (
    AttentionKernel,
    BatchSpec,
    InputSpec,
    ModelKind,
    ModelSpec,
    OptimizerName,
    OptimizerSpec,
    ParallelSpec,
    PrecisionSpec,
    RunSpec,
    from_mapping,
    load,
)

WriteSpec = Callable[[str], Path]
MINIMAL: dict[str, Any] = {"model": {"preset": "gpt2"}, "batch": {"micro_batch": 2, "sequence_length": 128}}


@pytest.fixture
def write_spec(tmp_path: Path) -> WriteSpec:
    def write(text: str) -> Path:
        path = tmp_path / "a.yaml"
        path.write_text(text)
        return path

    return write


def test_a_full_spec_becomes_one_record(write_spec: WriteSpec) -> None:
    path = write_spec("""
model: {transformers: LlamaForCausalLM, config: {hidden_size: 64}}
batch: {micro_batch: 1, sequence_length: 8192}
precision: {parameters: float32, compute: bf16}
optimizer: {name: sgd, momentum: 0.9}
attention: eager
loss: "my.losses:mean_of_squares"
parallel: {fsdp: 8}
device: a100-40gb
""")
    expected = RunSpec(
        path=str(path),
        model=ModelSpec(
            kind=ModelKind.TRANSFORMERS,
            name="LlamaForCausalLM",
            config={"hidden_size": 64},
            arguments={},
            preset=None,
        ),
        batch=BatchSpec(micro_batch=1, sequence_length=8192),
        inputs=(),
        precision=PrecisionSpec(parameters="float32", compute="bfloat16"),
        optimizer=OptimizerSpec(name=OptimizerName.SGD, momentum=0.9),
        attention=AttentionKernel.EAGER,
        loss="my.losses:mean_of_squares",
        parallel=ParallelSpec(fsdp=8),
        device="a100-40gb",
    )
    assert expected == load(path)


def test_only_model_and_batch_are_required() -> None:
    spec = from_mapping(MINIMAL)
    assert PrecisionSpec(parameters="float32", compute="float32") == spec.precision
    assert OptimizerSpec(name=OptimizerName.ADAMW, momentum=0.0) == spec.optimizer
    assert (AttentionKernel.FLASH, None, 1, "h100-80gb") == (
        spec.attention,
        spec.loss,
        spec.parallel.fsdp,
        spec.device,
    )


def test_compute_precision_follows_the_parameters() -> None:
    spec = from_mapping({**MINIMAL, "precision": {"parameters": "bfloat16"}})
    assert PrecisionSpec(parameters="bfloat16", compute="bfloat16") == spec.precision


def test_a_presets_config_can_be_overridden_key_by_key() -> None:
    spec = from_mapping({**MINIMAL, "model": {"preset": "llama-3-8b", "config": {"num_hidden_layers": 2}}})
    assert ("LlamaForCausalLM", "llama-3-8b") == (spec.model.name, spec.model.preset)
    assert (2, 4096) == (spec.model.config["num_hidden_layers"], spec.model.config["hidden_size"])


def test_a_config_file_is_found_beside_the_spec_and_loses_against_config(write_spec: WriteSpec) -> None:
    path = write_spec("""
model: {transformers: LlamaForCausalLM, config_file: config.json, config: {vocab_size: 8}}
batch: {micro_batch: 1}
""")
    (path.parent / "config.json").write_text('{"hidden_size": 64, "vocab_size": 32000}')
    assert {"hidden_size": 64, "vocab_size": 8} == load(path).model.config


def test_a_factory_takes_arguments_and_inputs(write_spec: WriteSpec) -> None:
    spec = load(
        write_spec("""
model: {factory: "my.models:unet", arguments: {depth: 4}}
inputs:
  image: {shape: [2, 3, 224, 224], dtype: float32}
  label: {shape: [2], dtype: int64, max: 1000}
  scale: {shape: [], dtype: float32, value: 0.5}
""")
    )
    expected_model = ModelSpec(
        kind=ModelKind.FACTORY, name="my.models:unet", config={}, arguments={"depth": 4}, preset=None
    )
    expected_inputs = (
        InputSpec(name="image", shape=(2, 3, 224, 224), dtype="float32", max_value=None, fill_value=None),
        InputSpec(name="label", shape=(2,), dtype="int64", max_value=1000, fill_value=None),
        InputSpec(name="scale", shape=(), dtype="float32", max_value=None, fill_value=0.5),
    )
    assert expected_model == spec.model
    assert expected_inputs == spec.inputs
    assert BatchSpec(micro_batch=2, sequence_length=None) == spec.batch


HEAD = "model: {preset: gpt2}\nbatch: {micro_batch: 1}\n"


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (
            "2: batch.micro_batch: expected a positive integer, found -1",
            "model: {preset: gpt2}\nbatch: {micro_batch: -1}\n",
        ),
        (
            "3: batch.micro_batch: expected a positive integer, found true",
            "model: {preset: gpt2}\nbatch:\n  micro_batch: yes\n",
        ),
        (
            "2: batch.micro_batch: expected a positive integer, found 1.0",
            "model: {preset: gpt2}\nbatch: {micro_batch: 1.0}\n",
        ),
        (
            "2: batch.micro_batch: expected a positive integer, found '8k'",
            "model: {preset: gpt2}\nbatch: {micro_batch: 8k}\n",
        ),
        (
            "2: batch.micro_batch: expected a positive integer, found nothing",
            "model: {preset: gpt2}\nbatch: {micro_batch: }\n",
        ),
        (
            "2: batch.micro_batch: expected at most 1,000,000,000, found 10000000000",
            "model: {preset: gpt2}\nbatch: {micro_batch: 10000000000}\n",
        ),
        (
            "3: batch.micro_bach: unknown key; did you mean 'micro_batch'?",
            "model: {preset: gpt2}\nbatch:\n  micro_bach: 1\n",
        ),
        ("1: 'model' is missing", "batch: {micro_batch: 1}\n"),
        ("1: expected at least one of batch, inputs, found none", "model: {preset: gpt2}\n"),
        (
            "1: expected a mapping with the keys model and batch, found a list",
            "- model\n",
        ),
        (
            "1: model: expected a mapping such as {preset: llama-3-8b}, found 'gpt2'",
            "model: gpt2\nbatch: {micro_batch: 1}\n",
        ),
        (
            "1: model: expected exactly one of transformers, preset, factory, found transformers and preset",
            "model: {preset: gpt2, transformers: GPT2LMHeadModel}\nbatch: {micro_batch: 1}\n",
        ),
        (
            "1: model.preset: unknown preset 'llama3-8b'; did you mean 'llama-3-8b'?",
            "model: {preset: llama3-8b}\nbatch: {micro_batch: 1}\n",
        ),
        (
            "1: model.arguments: has no meaning beside model.preset; with preset, use config",
            "model: {preset: gpt2, arguments: {a: 1}}\nbatch: {micro_batch: 1}\n",
        ),
        (
            "1: model.factory: expected a function written as package.module:function, found 'os.system'",
            "model: {factory: os.system}\nbatch: {micro_batch: 1}\n",
        ),
        (
            "3: optimizer: expected a mapping such as {name: adamw}, found 'adamw'",
            HEAD + "optimizer: adamw\n",
        ),
        (
            "3: optimizer.momentum: only sgd has momentum, and the optimizer is adamw",
            HEAD + "optimizer: {name: adamw, momentum: 0.9}\n",
        ),
        (
            "3: attention: expected one of flash, efficient, cudnn, eager, found 'falsh'; did you mean 'flash'?",
            HEAD + "attention: falsh\n",
        ),
        (
            "3: precision.compute: unknown dtype 'bfloat61'; did you mean 'bfloat16'?",
            HEAD + "precision: {compute: bfloat61}\n",
        ),
        (
            "3: precision.parameters: expected one of float32, bfloat16, float16, float64, found int8",
            HEAD + "precision: {parameters: int8}\n",
        ),
        (
            "3: precision.compute: autocast computes in bfloat16 or float16, found float32; or leave it out, to "
            "compute in bfloat16",
            HEAD + "precision: {parameters: bfloat16, compute: float32}\n",
        ),
        (
            "3: inputs.x.shape[1]: expected a positive integer, found 0",
            HEAD + "inputs: {x: {shape: [1, 0], dtype: int64}}\n",
        ),
        (
            "3: inputs: expected argument names of forward, found 'a-b'",
            HEAD + "inputs: {a-b: {shape: [1], dtype: int64}}\n",
        ),
        (
            "3: inputs.x.max: only integers have a max, and the dtype is float32",
            HEAD + "inputs: {x: {shape: [1], dtype: float32, max: 3}}\n",
        ),
        (
            "3: inputs.x.shape: expected at most 1,000,000,000,000 elements in all",
            HEAD + "inputs: {x: {shape: [10000000, 10000000], dtype: int8}}\n",
        ),
    ],
)
def test_a_spec_that_does_not_fit_says_what_and_where(message: str, text: str, write_spec: WriteSpec) -> None:
    path = write_spec(text)
    with pytest.raises(SpecError) as caught:
        load(path)
    assert f"{path}:{message}" == str(caught.value)


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ("3: device: unknown device 'h100'; did you mean 'h100-80gb'?", "device: h100\n"),
        ("4: device.memory: '80G' is ambiguous; write 80GB or 80GiB", "device:\n  memory: 80G\n"),
        ("4: device.memry: unknown key; did you mean 'memory'?", "device:\n  memry: 80GB\n"),
        ("3: device: 'memory' is missing; write it like {memory: 80GB}", "device: {launch_s: 4e-6}\n"),
    ],
)
def test_a_wrong_device_is_reported_at_its_line_of_the_spec(message: str, text: str, write_spec: WriteSpec) -> None:
    path = write_spec(HEAD + text)
    with pytest.raises(DeviceError) as caught:
        load(path)
    assert f"{path}:{message}" == str(caught.value)


def test_a_config_file_that_is_absent_is_reported_at_its_line_of_the_spec(write_spec: WriteSpec) -> None:
    path = write_spec("model:\n  transformers: A\n  config_file: no.json\nbatch: {micro_batch: 1}\n")
    with pytest.raises(SpecError, match=rf"{re.escape(str(path))}:3: model.config_file: .*no\.json: no such file"):
        load(path)


def test_a_mapping_passes_the_same_checks_without_lines() -> None:
    with pytest.raises(SpecError) as caught:
        from_mapping({**MINIMAL, "batch": {"micro_batch": 0}})
    assert "<memory>: batch.micro_batch: expected a positive integer, found 0" == str(caught.value)
    assert ("<memory>", None, "batch.micro_batch") == (
        caught.value.path,
        caught.value.line,
        caught.value.key,
    )


def test_a_spec_does_not_change_with_the_mapping_it_came_from() -> None:
    config = {"n_layer": 2}
    spec = from_mapping({**MINIMAL, "model": {"preset": "gpt2", "config": config}, "attention": AttentionKernel.EAGER})
    config["n_layer"] = 3
    assert spec.model.config["n_layer"] == 2
    assert spec.attention is AttentionKernel.EAGER


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
spec_keys = st.sampled_from(
    ["model", "batch", "inputs", "precision", "optimizer", "attention", "loss", "parallel", "device"]
)


@given(spec_keys, anything)
def test_whatever_a_key_holds_the_answer_is_a_spec_or_a_sentence(key: str, value: object) -> None:
    try:
        from_mapping({**MINIMAL, key: value})
    except PlannerError as error:
        assert isinstance(error, LocatedError)
        assert str(error)


def test_a_plan_in_place_of_a_spec_is_called_so() -> None:
    with pytest.raises(SpecError, match="this is a plan, expected a spec; name the one it was made for"):
        from_mapping({"version": 1, "model": {"name": "gpt2"}, "decisions": []})


def test_a_models_config_in_place_of_a_spec_is_called_so_with_the_spec_to_write(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text('{"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}')

    with pytest.raises(SpecError) as caught:
        load(file)

    assert f"{file}:1: this is a model's config, expected a spec" == str(caught.value).partition(";")[0]
    assert "model: {transformers: Qwen3ForCausalLM, config_file: config.json}, and batch" in str(caught.value)
