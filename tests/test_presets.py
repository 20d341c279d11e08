"""The presets have exactly the published number of parameters."""

from dataclasses import replace

import pytest

from planner.errors import SpecError
from planner.presets import load_preset, preset_names
from planner.spec import from_mapping, of_preset

PARAMETER_COUNTS = {
    "gpt2": 124_439_808,
    "llama-2-7b": 6_738_415_616,
    "llama-3-405b": 405_853_388_800,
    "llama-3-70b": 70_553_706_496,
    "llama-3-8b": 8_030_261_248,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "mistral-7b": 7_248_023_552,
    "mixtral-8x7b": 46_702_792_704,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-0.6b": 596_049_920,
    "qwen3-32b": 32_762_123_264,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "resnet-50": 25_557_032,
    "tinyllama-1.1b": 1_100_048_384,
    "vit-l": 304_326_632,
}


def test_every_preset_has_a_known_size() -> None:
    assert tuple(PARAMETER_COUNTS) == preset_names()


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_names_a_class_a_config_and_a_source(name: str) -> None:
    preset = load_preset(name)
    assert name == preset.name
    assert preset.transformers.isidentifier()
    assert preset.config
    assert preset.source


@pytest.mark.parametrize("name", preset_names())
def test_a_run_of_a_preset_is_that_of_a_spec_with_the_same_keys(name: str) -> None:
    settings = {"batch": {"micro_batch": 1, "sequence_length": 8}}
    precision = {"parameters": "float32", "compute": "bfloat16"}

    made = of_preset(name, micro_batch=1, sequence_length=8, **precision)

    assert replace(from_mapping({"model": {"preset": name}, **settings, "precision": precision}), path=name) == made


def test_an_unknown_preset_suggests_one() -> None:
    with pytest.raises(SpecError, match="did you mean 'qwen3-8b'"):
        load_preset("qwen-3-8b")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "parameter_count"), PARAMETER_COUNTS.items())
def test_a_preset_builds_the_model_of_its_name(name: str, parameter_count: int) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    preset = load_preset(name)
    model_class = getattr(transformers, preset.transformers)
    with torch.device("meta"):
        model = model_class(model_class.config_class(**preset.config))
    assert parameter_count == sum(parameter.numel() for parameter in model.parameters())


def test_no_hub_name_belongs_to_two_presets() -> None:
    names = [hub.lower() for name in preset_names() for hub in load_preset(name).hub]
    assert len(names) == len(set(names))
