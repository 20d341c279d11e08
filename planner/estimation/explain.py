"""Every figure of an estimate as a formula with the values put in, and where its rule comes from.

A formula is a sum of products of named numbers; it evaluates to the figure. The report prints the same entries that
the figures are added up from, so the two cannot differ.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from planner.costs.reserved import CUBLAS_THREADS, CUBLAS_WORKSPACE_BYTES, HOLES_SHARE
from planner.estimation.phases import SOURCES, Entry, Part, PhasePeak
from planner.estimation.verdict import (
    CONTEXT_HIGH_BYTES,
    CONTEXT_LOW_BYTES,
    NCCL_BUFFER_BYTES,
    NCCL_FEWEST_BUFFERS,
    NCCL_MOST_BUFFERS,
    Estimate,
    communicators,
)

_ALLOCATOR = "c10/cuda/CUDACachingAllocator.cpp; Knuth, The Art of Computer Programming 1, section 2.5"
_CONTEXT = "github.com/pytorch/pytorch/issues/107667 and /issues/28113; no figure by GPU generation is known"
_NCCL = "NCCL's documentation of NCCL_BUFFSIZE; the number of buffers is an assumption"
_SUM = "the sum of the parts"

Term = tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Formula:
    """A figure.

    Attributes:
        name: of what.
        terms: products of named numbers; rounded and added they are the figure.
        size_bytes: the figure.
        source: of the rule.
    """

    name: str
    terms: tuple[Term, ...]
    size_bytes: int
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """Formulas under one heading."""

    title: str
    formulas: tuple[Formula, ...]


def explain(found: Estimate) -> tuple[Explained, ...]:
    """The formulas of every figure, those of what lives through all phases once at the start."""
    throughout = _throughout(found.phases)
    sections = [Explained(title="throughout", formulas=_formulas(throughout))]
    for one in found.phases:
        own = [entry for entry in one.entries if entry not in throughout]
        sections.append(Explained(title=f"{one.phase}, at {one.where}", formulas=(*_formulas(own), _sum_of(one))))
    return (*sections, Explained(title="device", formulas=tuple(_device(found))))


def _throughout(phases: tuple[PhasePeak, ...]) -> list[Entry]:
    """What is there in every phase, loading included or not."""
    later = phases[1:]
    return [entry for entry in later[0].entries if all(entry in one.entries for one in later)]


def _formulas(entries: list[Entry]) -> tuple[Formula, ...]:
    places = {part: place for place, part in enumerate(Part)}
    return tuple(
        Formula(
            name=f"{entry.part}: {entry.what}",
            terms=(entry.factors,),
            size_bytes=entry.size_bytes,
            source=SOURCES[entry.part],
        )
        for entry in sorted(entries, key=lambda entry: places[entry.part])
    )


def _sum_of(one: PhasePeak) -> Formula:
    terms = tuple(((str(part), float(size_bytes)),) for part, size_bytes in one.parts.items())
    return Formula(name=f"{one.phase}, in all", terms=terms, size_bytes=one.size_bytes, source=_SUM)


def _device(found: Estimate) -> Iterator[Formula]:
    peak, groups = found.peak.size_bytes, communicators(found.run)
    yield Formula(
        name="reserved, at least",
        terms=((("allocated", peak),), (("handles", CUBLAS_THREADS), ("cuBLAS workspace", CUBLAS_WORKSPACE_BYTES))),
        size_bytes=found.reserved.low_bytes,
        source=_ALLOCATOR,
    )
    yield Formula(
        name="reserved, at most",
        terms=((("at least", found.reserved.low_bytes), ("with holes", 1 + HOLES_SHARE)),),
        size_bytes=found.reserved.high_bytes,
        source=_ALLOCATOR,
    )
    for name, total, reserved, context, communication, buffers, context_bytes in (
        ("at least", *_lows(found), NCCL_FEWEST_BUFFERS, CONTEXT_LOW_BYTES),
        ("at most", *_highs(found), NCCL_MOST_BUFFERS, CONTEXT_HIGH_BYTES),
    ):
        context_term: Term = (("for the CUDA context", context_bytes),)
        yield Formula(name=f"CUDA context, {name}", terms=(context_term,), size_bytes=context, source=_CONTEXT)
        nccl: Term = (("communicators", groups), ("buffers", buffers), ("bytes", NCCL_BUFFER_BYTES))
        yield Formula(name=f"NCCL, {name}", terms=(nccl,), size_bytes=communication, source=_NCCL)
        terms: tuple[Term, ...] = ((("reserved", reserved),), (("context", context),), (("NCCL", communication),))
        yield Formula(name=f"device total, {name}", terms=terms, size_bytes=total, source=_SUM)


def _lows(found: Estimate) -> tuple[int, int, int, int]:
    return (
        found.total.low_bytes,
        found.reserved.low_bytes,
        found.context.low_bytes,
        found.communication.low_bytes,
    )


def _highs(found: Estimate) -> tuple[int, int, int, int]:
    return (
        found.total.high_bytes,
        found.reserved.high_bytes,
        found.context.high_bytes,
        found.communication.high_bytes,
    )
