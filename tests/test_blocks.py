"""The repeated modules of a model, from its module records alone."""

import pytest

from planner.blocks import BlockIndex, block_levels, containing_block
from planner.graph import ModuleInfo


def module(fqn: str, class_name: str, *, parameters: int = 1, is_unit: bool = False) -> ModuleInfo:
    return ModuleInfo(
        fqn=fqn,
        class_name=class_name,
        is_container=class_name in ("ModuleList", "Sequential"),
        is_checkpoint_unit=is_unit,
        parameters=parameters,
    )


def test_children_of_one_class_in_a_list_are_blocks() -> None:
    table = [module("", "M"), module("layers", "ModuleList")]
    table += [module(f"layers.{i}", "Block") for i in range(3)] + [module("head", "Linear")]

    assert (("layers.0", "layers.1", "layers.2"),) == block_levels(table)


def test_nested_lists_are_levels_outermost_first() -> None:
    table = [module("", "M"), module("stages", "Sequential")]
    for stage in range(2):
        table += [module(f"stages.{stage}", "Stage"), module(f"stages.{stage}.layers", "Sequential")]
        table += [module(f"stages.{stage}.layers.{i}", "Bottleneck") for i in range(2)]

    assert (
        ("stages.0", "stages.1"),
        ("stages.0.layers.0", "stages.0.layers.1", "stages.1.layers.0", "stages.1.layers.1"),
    ) == block_levels(table)


def test_a_library_that_marks_its_own_units_settles_it() -> None:
    table = [module("", "M"), module("layers", "ModuleList")]
    for i in range(2):
        table += [module(f"layers.{i}", "Layer", is_unit=True), module(f"layers.{i}.experts", "ModuleList")]
        table += [module(f"layers.{i}.experts.{j}", "Expert") for j in range(4)]

    assert (("layers.0", "layers.1"),) == block_levels(table)


@pytest.mark.parametrize(
    "table",
    [
        [],
        [module("", "M"), module("first", "Linear"), module("second", "Linear")],
        [module("", "Sequential"), module("0", "Linear"), module("1", "Tanh", parameters=0)],
        [module("", "Sequential"), module("0", "ReLU", parameters=0), module("1", "ReLU", parameters=0)],
    ],
    ids=["nothing", "outside a list", "different classes", "without parameters"],
)
def test_a_model_without_repetition_has_no_level(table: list[ModuleInfo]) -> None:
    assert () == block_levels(table)


def test_a_path_lies_in_the_block_around_it() -> None:
    blocks = ("layers.1", "layers.10")

    for answer in (lambda fqn: containing_block(blocks, fqn), BlockIndex(blocks)):
        assert "layers.1" == answer("layers.1")
        assert "layers.10" == answer("layers.10.mlp.up")
        assert answer("layers.2.mlp") is None
        assert answer("") is None
