"""Bytes, seconds and dtype names between how people write them and how the code holds them.

GB is 10^9 bytes and GiB is 2^30 bytes, everywhere. Inside the code there are only bytes (int) and seconds
(float).
"""

import difflib
import re
from collections.abc import Mapping
from decimal import Decimal
from operator import index
from types import MappingProxyType

from planner.errors import UnitError

BYTES_BY_UNIT: Mapping[str, int] = MappingProxyType(
    {
        "B": 1,
        "KB": 10**3,
        "MB": 10**6,
        "GB": 10**9,
        "TB": 10**12,
        "KiB": 2**10,
        "MiB": 2**20,
        "GiB": 2**30,
        "TiB": 2**40,
    }
)

DTYPE_BYTES: Mapping[str, int] = MappingProxyType(
    {
        "float64": 8,
        "float32": 4,
        "float16": 2,
        "bfloat16": 2,
        "float8_e4m3fn": 1,
        "float8_e5m2": 1,
        "complex128": 16,
        "complex64": 8,
        "int64": 8,
        "int32": 4,
        "int16": 2,
        "int8": 1,
        "uint8": 1,
        "bool": 1,
    }
)

_DTYPE_ALIASES: Mapping[str, str] = MappingProxyType(
    {
        "fp64": "float64",
        "double": "float64",
        "fp32": "float32",
        "float": "float32",
        "fp16": "float16",
        "half": "float16",
        "bf16": "bfloat16",
        "long": "int64",
        "int": "int32",
    }
)

_SIZE = re.compile(r"\s*(-?)([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([A-Za-z]*)\s*")
_UNIT_BY_LOWER = {unit.lower(): unit for unit in BYTES_BY_UNIT}
_LARGEST_BYTES = 2**63 - 1  # CP-SAT and torch both hold sizes in 64 signed bits
_LONGEST_SIZE_TEXT = 64


def as_bytes(size: str | int, *, least: int = 1) -> int:
    """The bytes that a caller names, as a number or in words.

    Args:
        size: bytes, or text as for `parse_bytes`.
        least: the fewest bytes that make sense, 0 or 1.

    Raises:
        UnitError: The text cannot be read, or the number is not whole or below the least.
    """
    if isinstance(size, str):
        return parse_bytes(size, least=least)
    try:
        size_bytes = index(size)
    except TypeError:
        raise UnitError(f"expected whole bytes, or a text such as '40GB', found {size!r}", text=str(size)) from None
    if size_bytes < least:
        raise UnitError(_too_few(str(size), least), text=str(size))
    return size_bytes


def parse_bytes(text: str, *, least: int = 1) -> int:
    """The bytes that a size such as "40GB", "37.25 GiB" or "512mib" names, rounded down to a whole byte.

    Args:
        text: The size.
        least: The fewest bytes that make sense: 1, or 0 where none is an answer too, which then needs no unit.

    Raises:
        UnitError: The text has no number, no unit or an unknown one, or names fewer bytes than the least, or
            more than 64 bits can hold.
    """
    match = _SIZE.fullmatch(text) if len(text) <= _LONGEST_SIZE_TEXT else None
    if match is None:
        shown = text if len(text) <= _LONGEST_SIZE_TEXT else text[: _LONGEST_SIZE_TEXT - 1] + "…"
        raise UnitError(f"cannot read {shown!r} as a size; write it like 40GB or 37.5GiB", text=text)
    sign, number, unit_text = match.groups()
    is_plain_zero = least == 0 and not unit_text and not Decimal(number)
    size_bytes = 0 if is_plain_zero else int(Decimal(number) * _bytes_per_unit(unit_text, number, text))
    if sign or size_bytes < least:
        raise UnitError(_too_few(repr(text), least), text=text)
    if size_bytes > _LARGEST_BYTES:
        raise UnitError(f"{text!r} is more bytes than a 64-bit number can hold", text=text)
    return size_bytes


def _too_few(shown: str, least: int) -> str:
    return f"a size must be at least one byte{'' if least else ', or 0 for none'}, found {shown}"


def _bytes_per_unit(unit_text: str, number: str, text: str) -> int:
    unit = _UNIT_BY_LOWER.get(unit_text.lower())
    if unit is not None:
        return BYTES_BY_UNIT[unit]
    if not unit_text:
        raise UnitError(f"{text!r} has no unit; write {number}GB (10^9 bytes) or {number}GiB (2^30 bytes)", text=text)
    letter = unit_text.upper()
    if f"{letter}iB" in BYTES_BY_UNIT:
        raise UnitError(f"{text!r} is ambiguous; write {number}{letter}B or {number}{letter}iB", text=text)
    raise UnitError(f"unknown unit {unit_text!r} in {text!r}; use one of {', '.join(BYTES_BY_UNIT)}", text=text)


def format_rate(per_s: float) -> str:
    """A number per second: whole from 100 on, with three digits below."""
    return f"{per_s:,.0f}" if per_s >= 100 else f"{per_s:.3g}"


def format_bytes(size_bytes: int, *, binary: bool = False) -> str:
    """The size with one decimal in the largest unit that fits: "40.0 GB", or "37.3 GiB" when ``binary``."""
    units = ("B", "KiB", "MiB", "GiB", "TiB") if binary else ("B", "KB", "MB", "GB", "TB")
    sign, magnitude = ("-" if size_bytes < 0 else ""), abs(size_bytes)
    step = 1024 if binary else 1000
    if magnitude < step:
        return f"{sign}{magnitude} B"
    # The half step of rounding: 999,960,000 bytes are 1.0 GB, not 1000.0 MB.
    fitting = [unit for unit in units if magnitude >= BYTES_BY_UNIT[unit] * (1 - 0.05 / step)]
    return f"{sign}{magnitude / BYTES_BY_UNIT[fitting[-1]]:.1f} {fitting[-1]}"


def format_seconds(seconds: float) -> str:
    """The time with three significant figures in s, ms or µs; from 100 seconds on, in minutes or hours."""
    sign, magnitude = ("-" if seconds < 0 else ""), abs(seconds)
    if magnitude >= 5940:  # 99 minutes
        return f"{sign}{magnitude / 3600:.1f} h"
    if magnitude >= 100:
        return f"{sign}{magnitude / 60:.1f} min"
    scale, unit = (1, "s") if magnitude >= 0.9995 else (1e3, "ms") if magnitude >= 0.9995e-3 else (1e6, "µs")
    value = magnitude * scale
    decimals = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{sign}{value:.{decimals}f} {unit}"


def parse_dtype(text: str) -> str:
    """The torch name of a dtype: "bfloat16" for "bf16", "torch.bfloat16" or "bfloat16".

    Raises:
        UnitError: There is no such dtype in `DTYPE_BYTES`.
    """
    name = text.strip().lower().removeprefix("torch.")
    name = _DTYPE_ALIASES.get(name, name)
    if name in DTYPE_BYTES:
        return name
    close = difflib.get_close_matches(name, [*DTYPE_BYTES, *_DTYPE_ALIASES], n=1)
    suggestion = f"; did you mean {close[0]!r}?" if close else f"; use one of {', '.join(DTYPE_BYTES)}"
    raise UnitError(f"unknown dtype {text!r}{suggestion}", text=text)
