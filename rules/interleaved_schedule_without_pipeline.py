"""Virtual pipeline stages where there is no pipeline to interleave."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.diagnostics import Report, Rule, Severity, Source

_LEAST_STAGES = 2
_LEAST_STAGES_WITHOUT_OVERLAP = 3  # so that no two ranks both send to and receive from each other at one time


def find(config: Config) -> Iterator[Report]:
    """A report where virtual stages are asked for and the pipeline is too short for them."""
    virtual = config.first("num-virtual-stages-per-pipeline-rank", "num-layers-per-virtual-pipeline-stage")
    degree = config.number("pipeline-model-parallel-size")
    if virtual is None or not isinstance(degree, int) or "$unknown" in config.root.by_key or _stages(config) < 2:
        return
    no_overlap = config.on("no-overlap-p2p-communication")
    least = _LEAST_STAGES if no_overlap is None else _LEAST_STAGES_WITHOUT_OVERLAP
    if degree >= least:
        return
    related = [
        (setting, text)
        for setting, text in ((config.get("pipeline-model-parallel-size"), f"{degree}"), (no_overlap, "no overlap"))
        if setting is not None
    ]
    yield report(
        virtual,
        f"the interleaved schedule needs a pipeline of {least} stages or more"
        f"{'' if no_overlap is None else ' without overlap of communication'}, and this one has {degree}",
        help=f"set --pipeline-model-parallel-size to {least} or more, or remove this",
        related=related,
    )


def _stages(config: Config) -> int:
    """Virtual stages on each rank, 0 where that is not known."""
    count = config.number("num-virtual-stages-per-pipeline-rank")
    if isinstance(count, int):
        return count
    layers, degree = config.number("num-layers"), config.number("pipeline-model-parallel-size")
    each = config.number("num-layers-per-virtual-pipeline-stage")
    if not (isinstance(layers, int) and isinstance(degree, int) and isinstance(each, int) and degree > 0 and each > 0):
        return 0
    return layers // degree // each


RULE = Rule(
    code="PL404",
    name="interleaved-schedule-without-pipeline",
    severity=Severity.ERROR,
    summary="Virtual pipeline stages are asked for, and the pipeline is too short to interleave them.",
    why="The interleaved schedule gives each rank several groups of layers. Megatron-LM asserts that there are two "
    "stages, or three where communication does not overlap.",
    instead="A longer pipeline, or none.",
    sources=(Source(title="Megatron-LM, megatron-core 0.19.2", where="megatron/training/arguments.py: validate_args"),),
    find=find,
    dialects=("megatron",),
)
