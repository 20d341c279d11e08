"""Layers that cannot be divided equally among pipeline stages."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.diagnostics import Report, Rule, Severity, Source

# Arguments that say another division; with them the check is another one.
_OTHER_DIVISIONS = (
    "decoder-first-pipeline-num-layers",
    "decoder-last-pipeline-num-layers",
    "account-for-embedding-in-pipeline-split",
    "account-for-loss-in-pipeline-split",
    "pipeline-model-parallel-layout",
    "hybrid-layer-pattern",
    "hybrid-override-pattern",
    "num-virtual-stages-per-pipeline-rank",
    "heterogeneous-layers-config-path",
    "use-checkpoint-args",
    "$unknown",
)


def find(config: Config) -> Iterator[Report]:
    """A report where the layers are no multiple of the stages, or those of a stage none of a virtual stage's."""
    layers, stages = config.get("num-layers"), config.get("pipeline-model-parallel-size")
    if layers is None or any(config.get(key) is not None for key in _OTHER_DIVISIONS):
        return
    count, degree = config.number("num-layers"), config.number("pipeline-model-parallel-size")
    if not isinstance(count, int) or not isinstance(degree, int) or degree < 1:
        return
    if count % degree:
        yield report(
            layers,
            f"{count} layers cannot be divided equally among {degree} pipeline stages, and Megatron-LM asserts that "
            "they are",
            help="give the first or last stage fewer with --decoder-first-pipeline-num-layers or "
            "--decoder-last-pipeline-num-layers",
            related=[(stages, f"{degree} stages")] if stages is not None else [],
        )
        return
    virtual = config.get("num-layers-per-virtual-pipeline-stage")
    each = virtual.value if virtual is not None else None
    if virtual is not None and isinstance(each, int) and each > 0 and (count // degree) % each:
        yield report(
            virtual,
            f"a stage has {count // degree} layers, which are no multiple of {each}: Megatron-LM asserts that they are",
            help="use a number that divides the layers of a stage",
            related=[(layers, f"{count} layers over {degree} stages")],
        )


RULE = Rule(
    code="PL403",
    name="pipeline-splits-layers-unevenly",
    severity=Severity.ERROR,
    summary="The number of layers is no multiple of the pipeline stages, and no other division is given.",
    why="Megatron-LM asserts before training that stages are equal, unless it is told how they differ.",
    instead="A pipeline size that divides the layers, or arguments that say how many layers the first or last stage "
    "has.",
    sources=(Source(title="Megatron-LM, megatron-core 0.19.2", where="megatron/training/arguments.py: validate_args"),),
    find=find,
    dialects=("megatron",),
)
