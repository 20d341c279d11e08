"""Transformer Engine's CUDA graphs and expandable segments need NCCL to keep its hands off."""

from collections.abc import Iterator

from planner.configs.allocator import option
from planner.configs.config import Config, report
from planner.diagnostics import Report, Rule, Severity, Source


def find(config: Config) -> Iterator[Report]:
    """A report where graphs are captured in expandable segments that NCCL registers."""
    expandable = option(config, "expandable_segments")
    if expandable is None or expandable.value != "True":
        return
    graphs = config.get("cuda-graph-impl")
    uses_graphs = (graphs is not None and graphs.value == "transformer_engine") or config.on("external-cuda-graph")
    register = config.environment.get("NCCL_GRAPH_REGISTER")
    if uses_graphs and (register is None or str(register.value) != "0"):
        where = graphs or config.get("external-cuda-graph")
        yield report(
            expandable.place,
            "Transformer Engine's CUDA graphs in expandable segments access memory that is no longer theirs, unless "
            "NCCL_GRAPH_REGISTER is 0: Megatron-LM asserts that it is",
            help="set NCCL_GRAPH_REGISTER=0, or remove expandable_segments",
            related=[(where, "graphs are captured")] if where is not None else [],
        )


RULE = Rule(
    code="AL404",
    name="expandable-segments-with-cuda-graphs",
    severity=Severity.ERROR,
    summary="Transformer Engine's CUDA graphs with expandable segments, and NCCL_GRAPH_REGISTER is not 0.",
    why="NCCL registers the buffers of captured communication, and expandable segments may map them anew. Megatron-LM "
    "asserts `NCCL_GRAPH_REGISTER=0` with both, against illegal memory accesses.",
    instead="`NCCL_GRAPH_REGISTER=0`.",
    sources=(Source(title="Megatron-LM, megatron-core 0.19.2", where="megatron/training/arguments.py: validate_args"),),
    find=find,
    dialects=("megatron",),
)
