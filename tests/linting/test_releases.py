"""Which release a run surely has, and so whether a removed key is an error."""

import pytest

from planner.configs.dialect import Version, parse_version
from planner.linting.engine import Options, lint_text

REMOVED_IN_0_19_7 = '"compression_training": {"a": 1}'
TRAINER = (
    "model_name_or_path: a/b\nstage: sft\ntemplate: llama3\nfinetuning_type: lora\noutput_dir: x\n"
    "evaluation_strategy: steps\n"  # of Transformers until 4.51
)


def codes(text: str, path: str, **targets: Version) -> set[str]:
    return {found.rule.code for found in lint_text(text, path, Options(target_versions=targets)) or ()}


@pytest.mark.parametrize(
    ("other", "targets", "expected"),
    [
        ('"bf16": {"enabled": true}', {}, "KEY009"),
        ('"bf16": {"enabled": true}', {"deepspeed": (0, 19, 7)}, "KEY004"),
        ('"bf16": {"enabled": true}', {"deepspeed": parse_version("0.18")}, None),
        ('"managed_gradient_accumulation": true', {}, "KEY009"),  # since 0.19.4
    ],
)
def test_a_removed_key_is_an_error_where_the_release_is_stated(
    other: str, targets: dict[str, Version], expected: str | None
) -> None:
    text = '{"zero_optimization": {"stage": 1}, "train_batch_size": 1, ' + f"{other}, {REMOVED_IN_0_19_7}}}"
    assert ({expected} if expected else set()) == codes(text, "ds.json", **targets)


def test_a_key_that_came_with_the_release_tells_it() -> None:
    text = '[model]\nname = "llama3"\nflavor = "8B"\n{}[training]\nlocal_batch_size = 1\nseq_len = 8\ncompile = true\n'
    assert {"KEY009"} == codes(text.format(""), "a.toml")
    assert {"KEY004"} == codes(text.format('hf_assets_path = "x"\n'), "a.toml")  # both of torchtitan 0.2.0


def test_the_release_of_a_framework_says_nothing_of_those_whose_keys_it_takes() -> None:
    assert "KEY009" in codes(TRAINER, "a.yaml", llamafactory=(0, 9, 4))
    assert "KEY004" in codes(TRAINER, "a.yaml", transformers=parse_version("4.51"))


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("5.14.1", (5, 14, 1)), ("v0.12", (0, 12, 0)), ("1", (1, 0, 0)), ("2.0rc1", (2, 0, 0)), ("", ())],
)
def test_a_release_written_short_is_its_first_one(text: str, numbers: Version) -> None:
    assert numbers == parse_version(text)
