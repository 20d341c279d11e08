"""Sequence parallelism divides among tensor-parallel ranks, and there is only one."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.diagnostics import Report, Rule, Severity, Source


def find(config: Config) -> Iterator[Report]:
    """A report where sequence parallelism is asked for and the tensor-parallel degree is 1."""
    asked, ranks = config.facts.sequence_parallel, config.facts.tensor_parallel
    if asked is None or asked.setting is None or not asked.value or ranks is None or ranks.value != 1:
        return
    if config.is_merged(asked.setting):
        return  # other runs of the file, with more ranks, may have it from the same line
    consequence = _CONSEQUENCES.get(config.dialect.name, f"{config.dialect.framework} switches it off")
    yield report(
        asked.setting,
        "sequence parallelism divides what norms and dropout keep among tensor-parallel ranks, and there is one: "
        f"{consequence}",
        help="use two tensor-parallel ranks or more, or remove it; context parallelism needs no tensor parallelism",
        related=[(ranks.setting, "there is one rank")] if ranks.setting is not None else [],
    )


_CONSEQUENCES = {
    "megatron_bridge": "Megatron-Core refuses it, unless the recipe changes that",
    "nemo_automodel": "it has no effect",
    "gpt_neox": "it has no effect",
    "accelerate": "Megatron-LM switches it off",
}

RULE = Rule(
    code="PL401",
    name="sequence-parallel-without-tensor-parallel",
    severity=Severity.NO_OP,
    summary="Sequence parallelism is on, and the tensor-parallel degree is 1.",
    why="Megatron's sequence parallelism keeps each tensor-parallel rank's share of what lies between the parallel "
    "matrix products. With one rank there is nothing to share: the activations stay as large as before, and the "
    "frameworks switch it off, most of them without more than a line in the log.",
    instead="A tensor-parallel degree of 2 or more, or context parallelism, which needs no tensor parallelism.",
    sources=(
        Source(title="Megatron-LM, megatron-core 0.19.2", where="megatron/training/arguments.py: validate_args"),
        Source(title="Megatron-Core 0.19.2", where="megatron/core/model_parallel_config.py: __post_init__"),
        Source(title="NeMo 2.0.0", where="nemo/collections/nlp/models/language_modeling/megatron_base_model.py"),
        Source(title="GPT-NeoX ea7aefd", where="megatron/neox_arguments/neox_args.py: sequence_parallel"),
        Source(title="ms-swift 4.6.0", where="swift/megatron/arguments/megatron_args.py: __post_init__"),
    ),
    find=find,
    dialects=("megatron", "megatron_bridge", "nemo", "nemo_automodel", "ms_swift", "gpt_neox", "accelerate"),
)
