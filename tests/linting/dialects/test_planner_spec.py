"""The planner's own model specs: how they are recognised, and what they ask for."""

from pathlib import Path

import pytest

from tests.linting.dialects.reading import dialect_of, facts_of, values

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*.yaml"))

CONFIG = """
model: {preset: llama-3-8b}
batch: {micro_batch: 2, sequence_length: 8192}
parallel: {fsdp: 8, tp: 2}
checkpointing: {every: 2}
loss_kernel: fused-linear
offload: {activations: true}
"""


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_every_example_of_ours_is_recognised(path: Path) -> None:
    assert dialect_of(path.read_text()) == "planner_spec"


def test_a_preset_of_another_program_is_not() -> None:
    assert dialect_of("model:\n  preset: fast\n  size: 3\n") is None
    assert dialect_of("model:\n  preset: [fast]\nbatch:\n  size: 3\n") is None


def test_keys_and_defaults_are_facts() -> None:
    assert values(
        facts_of(CONFIG),
        "model", "micro_batch", "sequence_length", "sharding", "data_parallel", "tensor_parallel", "checkpointing",
        "loss", "attention", "activation_offload", "lora",
    ) == {
        "model": "llama-3-8b",
        "micro_batch": 2,
        "sequence_length": 8192,
        "sharding": "parameters",
        "data_parallel": 8,
        "tensor_parallel": 2,
        "checkpointing": "full",
        "loss": "fused",
        "attention": "flash",
        "activation_offload": True,
        "lora": False,
    }  # fmt: skip


def test_what_does_not_fit_is_no_fact() -> None:
    facts = facts_of("model: {preset: 3}\nbatch: {micro_batch: yes, sequence_length: long}\ncheckpointing: [block]\n")
    assert values(facts, "model", "micro_batch", "sequence_length", "checkpointing") == {
        "model": None,
        "micro_batch": None,
        "sequence_length": None,
        "checkpointing": None,
    }
