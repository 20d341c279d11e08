"""Module paths that differ only in their numbers, written once: `model.layers.{0..30}.mlp`.

`compress` turns rows keyed by module path into patterns, `expand` turns a pattern back into paths. A pattern
stands for the product of its number sets, so both directions are exact. A brace that is part of a name is
written twice.
"""

import re
from collections.abc import Hashable, Iterable, Iterator
from itertools import product
from typing import TypeVar

Payload = TypeVar("Payload", bound=Hashable)
_Parts = tuple[str | frozenset[int], ...]

_NUMBER = re.compile(r"0|[1-9][0-9]*")
# A doubled brace, a number set, or anything that is neither: only the last may be a mistake.
_PIECE = re.compile(r"(\{\{|\}\})|\{([0-9.,]+)\}|([^{}]+)")


def compress(rows: Iterable[tuple[str, Payload]]) -> list[tuple[str, Payload]]:
    """The rows with paths merged into patterns wherever the payload is equal, in order of first appearance.

    Args:
        rows: (module path, payload), each path at most once per payload.
    """
    merged: list[tuple[_Parts, Payload]] = [
        (
            tuple(frozenset({int(part)}) if _NUMBER.fullmatch(part) else part for part in path.split(".")),
            payload,
        )
        for path, payload in rows
    ]
    depth = max((len(parts) for parts, _ in merged), default=0)
    for place in range(depth):
        merged = _merge_place(merged, place)
    return [(".".join(_written(part) for part in parts), payload) for parts, payload in merged]


def _merge_place(rows: list[tuple[_Parts, Payload]], place: int) -> list[tuple[_Parts, Payload]]:
    """Unite rows that differ in nothing but the numbers at one place of the path."""
    groups: dict[Hashable, tuple[_Parts, Payload]] = {}
    for position, (parts, payload) in enumerate(rows):
        here = parts[place] if place < len(parts) else ""
        if isinstance(here, str):
            groups[position] = (parts, payload)
            continue
        key = (parts[:place], parts[place + 1 :], payload)
        if key in groups:
            seen = groups[key][0][place]
            assert isinstance(seen, frozenset)
            here = seen | here
        groups[key] = ((*parts[:place], here, *parts[place + 1 :]), payload)
    return list(groups.values())


def _written(part: str | frozenset[int]) -> str:
    if isinstance(part, str):
        return part.replace("{", "{{").replace("}", "}}")
    runs: list[list[int]] = []
    for number in sorted(part):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    if len(runs) == 1 and len(runs[0]) == 1:
        return str(runs[0][0])
    return "{" + ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}..{run[-1]}" for run in runs) + "}"


def expand(pattern: str) -> Iterator[str]:
    """Every path that a pattern stands for.

    Raises:
        ValueError: the braces hold something other than numbers and ranges, or stand for more than
            `MAX_EXPANSION` paths.
    """
    parts: list[list[str]] = []
    count, place = 1, 0
    while place < len(pattern):
        piece = _PIECE.match(pattern, place)
        if piece is None:
            raise ValueError(f"cannot read the module pattern {pattern!r}")
        brace, numbers, text = piece.groups()
        parts.append([brace[0]] if brace else [text] if text else [str(n) for n in _numbers(numbers)])
        count *= len(parts[-1])
        if count > MAX_EXPANSION:
            raise ValueError(f"the module pattern {pattern!r} stands for more than {MAX_EXPANSION:,} modules")
        place = piece.end()
    for chosen in product(*parts):
        yield "".join(chosen)


# More modules than any real model has; a pattern that says more is a mistake or an attack.
MAX_EXPANSION = 1_000_000


def _numbers(text: str) -> Iterator[int]:
    for item in text.split(","):
        first, dots, last = item.partition("..")
        if not first.isdigit() or (dots and not last.isdigit()):
            raise ValueError(f"cannot read the numbers {{{text}}}")
        start, stop = int(first), int(last or first)
        if stop < start or stop - start >= MAX_EXPANSION:
            raise ValueError(f"cannot read the range {{{text}}}")
        yield from range(start, stop + 1)
