"""The op graphs of a step at all micro-batches from its graphs at two, where every figure is affine in the micro-batch.

In most models a figure of the graph (bytes, FLOPs, a size of a shape) is a constant plus so much per sample, and all
else is the same for every micro-batch, though often not for one sample, whose tensors are laid out otherwise. Then two
graphs give all others. That it is so for a model is not assumed: `SharedTraces` compares a scaled graph with a third
that was traced, in every record, and traces where they differ.

Measured on one core beside tracing (seconds, scaled and traced): Llama 3 8B 0.1 and 0.8, Llama 3 405B 0.5 and 3.5, a
Mamba that scans 512 tokens in four layers 2.0 and 6.5; the third graph was met in every record by all models tried
(`docs/throughput.md`). Solving such a graph takes 1 to 2 s.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import networkx as nx

from planner.graph import (
    Op,
    OpGraph,
    SavedTensor,
    StepInfo,
    Storage,
    modules,
    ops,
    saved_tensors,
    step_info,
    storages,
    values,
)

_Figure = int | tuple[int, ...]
_Record = TypeVar("_Record", Op, Storage, SavedTensor, StepInfo)
# Of each kind of record, the fields that may depend on the micro-batch; any other that differs is a difference in kind.
_FIGURES: Mapping[type, tuple[str, ...]] = {
    Op: ("read_bytes", "write_bytes", "flops", "workspace_bytes", "shape"),
    Storage: ("size_bytes",),
    SavedTensor: ("shape",),
    StepInfo: ("micro_batch", "tokens"),
}


# A line goes through two graphs; the third shows whether the step is on it.
_GRAPHS_COMPARED = 3


class _NotAffineError(Exception):
    """A difference in kind between two graphs, or a figure that would be negative or no whole number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """The graphs of a step at all micro-batches.

    Attributes:
        one: the graph at `start` samples.
        span: by how many samples the second graph was larger.
        storages, saved, ops: by position in each table of `one`, what the second graph has more, of what differs.
    """

    one: OpGraph
    start: int
    span: int
    storages: Mapping[int, "_Growth"]
    saved: Mapping[int, "_Growth"]
    ops: Mapping[int, "_Growth"]
    step: "_Growth"

    def at(self, micro_batch: int) -> OpGraph | None:
        """The graph at a number of samples, or None if some figure would be negative or no whole number there."""
        samples = micro_batch - self.start
        try:
            graph: OpGraph = nx.DiGraph(
                storages=self._table(storages(self.one), self.storages, samples),
                values=values(self.one),
                saved_tensors=self._table(saved_tensors(self.one), self.saved, samples),
                modules=modules(self.one),
                step=self._record(step_info(self.one), self.step, samples),
            )
            records = self._table(ops(self.one), self.ops, samples)
        except _NotAffineError:
            return None
        graph.add_nodes_from((op.step, {"op": op}) for op in records)
        graph.add_edges_from(self.one.edges(data=True))  # they follow from what ops read, which is equal in all
        return graph

    def _table(self, table: Sequence[_Record], growths: Mapping[int, "_Growth"], samples: int) -> tuple[_Record, ...]:
        found = list(table)
        for position, growth in growths.items():
            found[position] = self._record(found[position], growth, samples)
        return tuple(found)

    def _record(self, record: _Record, growth: "_Growth", samples: int) -> _Record:
        figures: dict[str, Any] = {}
        for name, grown in growth.items():
            figure = getattr(record, name)
            figures[name] = (
                self._number(figure, grown, samples)
                if isinstance(grown, int)
                else tuple([self._number(size, more, samples) for size, more in zip(figure, grown, strict=True)])
            )
        return replace(record, **figures)

    def _number(self, figure: int, grown: int, samples: int) -> int:
        more, rest = divmod(grown * samples, self.span)
        if rest or figure + more < 0:
            raise _NotAffineError
        return figure + more


_Growth = Mapping[str, _Figure]


def family(one: OpGraph, other: OpGraph) -> Family | None:
    """The graphs on the line through two, which are of one spec at different micro-batches.

    Returns:
        None if the two differ in more than figures, or do not know their micro-batch.
    """
    start, end = step_info(one).micro_batch, step_info(other).micro_batch
    if start is None or end is None or start == end:
        return None
    if values(one) != values(other) or modules(one) != modules(other):
        return None
    try:
        return Family(
            one=one,
            start=start,
            span=end - start,
            storages=_growths(storages(one), storages(other)),
            saved=_growths(saved_tensors(one), saved_tensors(other)),
            ops=_growths(ops(one), ops(other)),
            step=_growth(step_info(one), step_info(other)),
        )
    except _NotAffineError:
        return None


def is_same_step(one: OpGraph, other: OpGraph) -> bool:
    """Whether two graphs are equal in every record."""
    return (
        step_info(one) == step_info(other)
        and storages(one) == storages(other)
        and values(one) == values(other)
        and saved_tensors(one) == saved_tensors(other)
        and modules(one) == modules(other)
        and ops(one) == ops(other)
    )


class SharedTraces:
    """The graphs of a step at many micro-batches: traced, until the last three show that the others can be scaled.

    Two give the line and the third must lie on it in every record. From then on, what is not below the smallest
    micro-batch found on the line is scaled; what is below is traced. A model that changes somewhere beyond those
    traced is not noticed: whoever relies on one graph traces it.

    Args:
        trace: the graph at a number of samples, from the model.
    """

    def __init__(self, trace: Callable[[int], OpGraph]) -> None:
        self._trace = trace
        self._recent: list[tuple[int, OpGraph]] = []
        self._family: Family | None = None
        self._smallest = 0

    def at(self, micro_batch: int) -> tuple[OpGraph, bool]:
        """The graph at a number of samples, and whether it was scaled from others."""
        if self._family is not None and micro_batch >= self._smallest:
            graph = self._family.at(micro_batch)
            if graph is not None:
                return graph, True
        graph = self._trace(micro_batch)
        if self._family is None:
            self._recent = [*self._recent[1 - _GRAPHS_COMPARED :], (micro_batch, graph)]
            self._look_for_family()
        elif _has(self._family, micro_batch, graph):
            self._smallest = min(self._smallest, micro_batch)
        return graph, False

    def _look_for_family(self) -> None:
        if len(self._recent) < _GRAPHS_COMPARED:
            return
        (_, one), (_, other), (micro_batch, graph) = self._recent
        found = family(one, other)
        if found is not None and _has(found, micro_batch, graph):
            self._family = found
            self._smallest = min(size for size, _ in self._recent)
            self._recent = []


def _has(found: Family, micro_batch: int, graph: OpGraph) -> bool:
    scaled = found.at(micro_batch)
    return scaled is not None and is_same_step(scaled, graph)


def _growths(one: Sequence[_Record], other: Sequence[_Record]) -> Mapping[int, _Growth]:
    if len(one) != len(other):
        raise _NotAffineError
    pairs = enumerate(zip(one, other, strict=True))
    return {position: _growth(first, second) for position, (first, second) in pairs if first != second}


def _growth(one: _Record, other: _Record) -> _Growth:
    """How much larger the figures of a record are, those that differ."""
    changed = {name: getattr(other, name) for name in _FIGURES[type(one)] if getattr(one, name) != getattr(other, name)}
    if replace(one, **changed) != other:
        raise _NotAffineError
    return {name: _difference(getattr(one, name), figure) for name, figure in changed.items()}


def _difference(one: _Figure, other: _Figure) -> _Figure:
    if isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other):
        return tuple([second - first for first, second in zip(one, other, strict=True)])
    if isinstance(one, int) and isinstance(other, int):
        return other - one
    raise _NotAffineError
