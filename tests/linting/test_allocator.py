"""The allocator's options in an environment variable, with their places."""

import pytest

from planner.configs.allocator import allocator_options
from planner.configs.tree import SourceFormat
from tests.linting.dialects.reading import read

SCRIPT = "export PYTORCH_CUDA_ALLOC_CONF={}\nswift sft --model Qwen/Qwen2.5-7B\n"


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("expandable_segments:True", [("expandable_segments", "True")]),
        ('"max_split_size_mb: 128 , backend:native"', [("max_split_size_mb", "128"), ("backend", "native")]),
        ("'roundup_power2_divisions:[256:1,>:8],'", [("roundup_power2_divisions", "[256:1,>:8]")]),
        ("expandable_segments", [("expandable_segments", None)]),
        ("$CONF", []),
        ("''", []),
    ],
)
def test_options_are_split_at_commas_outside_of_brackets(written: str, expected: list[tuple[str, str | None]]) -> None:
    text = SCRIPT.format(written)
    config = read(text, SourceFormat.SHELL)
    assert config is not None
    options = list(allocator_options(config))
    assert expected == [(option.name, option.value) for option in options]
    for option in options:
        assert text[option.place.start : option.place.end].startswith(option.name)
        if option.value is not None:
            assert option.value == text[option.value_place.start : option.value_place.end]
