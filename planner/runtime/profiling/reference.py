"""How fast the machine is at a moment: two fixed calls, timed again and again between the measurements.

What else a machine does changes its speed, and on some by half: cores share caches, units and power with their
neighbours. Processor time does not tell. A product and an elementwise op do: each slows down as others of its kind do.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean, quantiles

import torch

from planner.runtime.profiling.timing import Stopwatch

_SIDE = 384
_ELEMENTS = 2**20
_REPEATS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Seconds that the two calls take."""

    product_s: float
    elementwise_s: float


class Reference:
    """The two calls, ready to be timed."""

    def __init__(self, device: torch.device) -> None:
        self._matrices = [torch.full((_SIDE, _SIDE), 0.5, device=device) for _ in range(2)]
        self._vectors = [torch.full((_ELEMENTS,), 0.5, device=device) for _ in range(2)]

    def speed(self, stopwatch: Stopwatch) -> Speed:
        """What the calls take now."""
        return Speed(
            product_s=stopwatch.seconds(self._multiply) / _REPEATS,
            elementwise_s=stopwatch.seconds(self._scale) / _REPEATS,
        )

    def _multiply(self) -> None:
        for _ in range(_REPEATS):
            torch.mm(*self._matrices)

    def _scale(self) -> None:
        for _ in range(_REPEATS):
            torch.mul(*self._vectors)


def at_best(speeds: Iterable[Speed]) -> Speed:
    """What the calls took while the machine was least disturbed: the lowest tenth of each."""
    found = list(speeds)
    return Speed(
        product_s=_lowest_tenth([speed.product_s for speed in found]),
        elementwise_s=_lowest_tenth([speed.elementwise_s for speed in found]),
    )


def slowdown(around: Iterable[Speed], best: Speed, *, arithmetic_share: float) -> float:
    """How many times as long as at its best the machine took, by what was measured just before and after.

    Args:
        around: speeds before and after.
        best: the speed to compare with.
        arithmetic_share: of the time in question, what goes as the product does; the rest goes as the elementwise op.
    """
    found = list(around)
    product = fmean(speed.product_s for speed in found) / best.product_s
    elementwise = fmean(speed.elementwise_s for speed in found) / best.elementwise_s
    return arithmetic_share * product + (1 - arithmetic_share) * elementwise


def _lowest_tenth(times: list[float]) -> float:
    return times[0] if len(times) < 2 else quantiles(times, n=10, method="inclusive")[0]
