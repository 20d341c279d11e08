"""Rounded rows: what a limit on bytes says of whole plans, which choose one option per cell and no shares of them.

A row of the master program limits a sum of bytes with one term for each of some cells. With any rise g > f ≥ 0,

    F(x) = ⌊x/g⌋ + max(0, x mod g − f) / (g − f)

never falls, and F(x) + F(y) ≤ F(x + y). So for whole plans Σ F(term − reference) ≤ F(limit − Σ references), whatever
the references, one per cell. Shares of options may break that: where most cells choose between two options that are g
bytes apart and only some of the steps fit, what is left over of the room does not pay for a part of one.

Which rises and references are tried is a guess from the relaxed answer; it decides how good a bound is, never whether
it holds.

Source: mixed-integer rounding, G. Nemhauser and L. Wolsey, "A recursive procedure to generate all cuts for 0-1 mixed
integer programs", Mathematical Programming 46 (1990).
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

# A row is worth having if the relaxed answer breaks it by this part of a step.
_LEAST_BROKEN = 1e-3
# Lower steps than this are not tried: where sizes are so close, a part of one hardly matters.
_LEAST_RISE_BYTES = 1 << 22


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounding:
    """Counts bytes in steps: F of the module's text, with g as `rise_bytes` and f as `free_bytes`."""

    rise_bytes: int
    free_bytes: int

    def steps(self, size_bytes: int) -> float:
        """F(x)."""
        whole, rest = divmod(size_bytes, self.rise_bytes)
        return whole + max(0, rest - self.free_bytes) / (self.rise_bytes - self.free_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundedRow:
    """A row in steps.

    Attributes:
        references_bytes: taken off each term before it is rounded; one per cell, in order.
        rounding: of all terms.
        most_steps: what they may come to.
    """

    references_bytes: tuple[int, ...]
    rounding: Rounding
    most_steps: float

    @staticmethod
    def of(references_bytes: tuple[int, ...], *, rise_bytes: int, limit_bytes: int) -> "RoundedRow":
        """The rounded form of a row with this limit: what remains beyond whole steps is free."""
        whole, free_bytes = divmod(limit_bytes - sum(references_bytes), rise_bytes)
        rounding = Rounding(rise_bytes=rise_bytes, free_bytes=free_bytes)
        return RoundedRow(references_bytes=references_bytes, rounding=rounding, most_steps=float(whole))

    def steps(self, place: int, size_bytes: int) -> float:
        """The term of a cell."""
        return self.rounding.steps(size_bytes - self.references_bytes[place])


def broken_rows(
    shares: Sequence[Mapping[int, float]],
    kinds: Sequence[Hashable],
    limit_bytes: int,
    *,
    rises_bytes: Iterable[int],
) -> list[tuple[float, RoundedRow]]:
    """The rounded forms of a row that a relaxed answer breaks, each with the bytes by which it does.

    References are terms that the answer mixes: for each kind of cell the usual one, for one kind at a time any other.

    Args:
        shares: per cell, the share of each term (in bytes) in the answer.
        kinds: per cell; those of the same kind have the same reference.
        limit_bytes: of the row.
        rises_bytes: to try, besides the differences between the terms of a kind.
    """
    mixed: dict[Hashable, dict[int, float]] = {}
    for kind, terms in zip(kinds, shares, strict=True):
        for size_bytes, share in terms.items():
            sums = mixed.setdefault(kind, {})
            sums[size_bytes] = sums.get(size_bytes, 0.0) + share
    usual = {kind: max(terms, key=terms.__getitem__) for kind, terms in mixed.items()}
    chosen = [usual] + [{**usual, kind: size_bytes} for kind, terms in mixed.items() for size_bytes in terms]
    references = dict.fromkeys(tuple(by_kind[kind] for kind in kinds) for by_kind in chosen)
    apart = {abs(one - other) for terms in mixed.values() for one in terms for other in terms}
    rises = sorted(rise for rise in apart.union(rises_bytes) if rise >= _LEAST_RISE_BYTES)
    cells = np.array([place for place, terms in enumerate(shares) for _ in terms])
    sizes = np.array([size_bytes for terms in shares for size_bytes in terms])
    parts = np.array([share for terms in shares for share in terms.values()])
    found = []
    for reference, rise_bytes in product(references, rises):
        row = RoundedRow.of(reference, rise_bytes=rise_bytes, limit_bytes=limit_bytes)
        free_bytes = row.rounding.free_bytes
        whole, rest = np.divmod(sizes - np.array(reference)[cells], rise_bytes)
        steps = whole + np.maximum(0, rest - free_bytes) / (rise_bytes - free_bytes)
        broken = float(steps @ parts) - row.most_steps
        if broken > _LEAST_BROKEN:
            found.append((broken * rise_bytes, row))
    return found
