"""From timed calls to the points of a rate curve. Plain arithmetic, no torch."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from math import exp, floor, log, log10
from statistics import fmean, median, quantiles

# Samples whose places lie within the same factor of this become one point.
_MERGED = 1.4
_DIGITS = 4
# Of a call's time, what is left for its work at least once what a call takes without any is taken off: below that
# the difference of two nearly equal times would be noise.
_LEAST_SHARE = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One call at one size.

    Attributes:
        place: where on the curve it lies: bytes, or FLOPs per byte.
        work: bytes or FLOPs.
        seconds: what its work took.
        spread: of its repetitions.
    """

    place: float
    work: float
    seconds: float
    spread: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One point of a curve: the rate at a place, per second."""

    place: float
    rate_per_s: float
    spread: float


def net_seconds(seconds: float, empty_s: float) -> float:
    """What a call's work takes: its time without that of a call without work."""
    return max(seconds - empty_s, _LEAST_SHARE * seconds)


def spread(times: Iterable[float]) -> float:
    """Distance of the quartiles over the median; 0 for a single time."""
    found = list(times)
    if len(found) < 2:
        return 0.0
    low, middle, high = quantiles(found, n=4, method="inclusive")
    return (high - low) / middle if middle else 0.0


def points(samples: Iterable[Sample]) -> tuple[Point, ...]:
    """The curve through the samples, ascending.

    Samples at nearly the same place become one point at their geometric means. Where by chance a larger place would
    take less time than the one before, its rate is lowered to take as long.
    """
    ordered = sorted((s for s in samples if s.place > 0 and s.work > 0 and s.seconds > 0), key=lambda s: s.place)
    found: list[Point] = []
    for _, group in groupby(ordered, key=_Bin()):
        near = list(group)
        place = _rounded(exp(fmean(log(s.place) for s in near)))
        rate = _rounded(exp(fmean(log(s.work / s.seconds) for s in near)))
        if found:
            rate = min(rate, _rounded(found[-1].rate_per_s * place / found[-1].place))
        found.append(Point(place=place, rate_per_s=rate, spread=round(median(s.spread for s in near), 3)))
    return tuple(found)


class _Bin:
    """Gives neighbours within the factor the same number; to be asked in ascending order."""

    def __init__(self) -> None:
        self._first = 0.0
        self._number = 0

    def __call__(self, sample: Sample) -> int:
        if sample.place > self._first * _MERGED:
            self._first = sample.place
            self._number += 1
        return self._number


def _rounded(number: float) -> float:
    return round(number, _DIGITS - 1 - floor(log10(number)))
