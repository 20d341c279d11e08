"""Whether a published size of a KV cache is right, and if not, which common slip gives it.

A slip is a factor between the right size and the one that a known mistake leads to. A figure is compared to within
the digits it is stated with.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from itertools import combinations

AGREES_WITHIN = 0.002
# From here on a figure is called wrong: engines' logs and the pages that round them stay well below.
WRONG_FROM = 0.05
# A slip explains a figure to within the figure's digits, or this, whichever is more: "about 65 KB".
_EXPLAINS_WITHIN = 0.01
_SHOWN_EXPLANATIONS = 3

# The size that most pages start from: a token of Llama 2 7B in half precision, 2 × 32 layers × 32 heads × 128 × 2 B.
_LLAMA_2_7B_TOKEN_BYTES = 524_288


class Verdict(StrEnum):
    """What a stated size is, compared with the right one."""

    AGREES = "agrees"
    ROUNDED = "agrees to the digits stated"
    DIFFERS = "differs"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True, kw_only=True)
class Slip:
    """A mistake: what it does, and the factor by which the size is then off."""

    what: str
    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """A stated size beside the right one.

    Attributes:
        verdict: how they compare.
        stated_bytes, right_bytes: both.
        error: right / stated − 1.
        reasons: the slips that give a wrong figure, the likeliest first; empty if none is known.
    """

    verdict: Verdict
    stated_bytes: int
    right_bytes: int
    error: float
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedSizes:
    """What a stated size is about.

    Attributes:
        layers, kv_heads, element_bytes: of the model and its format; 0 heads for a latent vector.
        heads_sharing: query heads to each key and value head; 1 for multi-head attention, or if it is not known.
        multi_head_factor: how much more would be stored if every head had keys and values of its own.
        token_bytes: the right size of one token on one rank.
        tokens: that the size is of.
        ranks: of tensor parallelism.
    """

    layers: int
    kv_heads: int
    element_bytes: float
    heads_sharing: int
    multi_head_factor: float
    token_bytes: int
    tokens: int
    ranks: int = 1


def slips(sizes: ClaimedSizes) -> tuple[Slip, ...]:
    """The known mistakes that would change the size of this cache, the likeliest first."""
    group = sizes.heads_sharing
    found = [
        Slip(
            what="counts every attention head (MHA), although they share keys and values",
            factor=sizes.multi_head_factor,
        ),
        Slip(what="counts keys or values, not both", factor=1 / 2),
        Slip(what="counts one layer", factor=1 / sizes.layers),
        Slip(what="counts one token", factor=1 / sizes.tokens),
        Slip(what=f"leaves out that {sizes.ranks} ranks share the heads", factor=sizes.ranks),
        *(
            Slip(what=f"counts {size} B an element, not {sizes.element_bytes:g}", factor=size / sizes.element_bytes)
            for size in (2, 1, 4)
        ),
        *(Slip(what=what, factor=(1024 / 1000) ** power) for power, what in _UNITS.items()),
        Slip(what="takes one head with keys and values (MQA)", factor=1 / max(1, sizes.kv_heads)),
        Slip(
            what=f"takes Llama 2 7B's {_LLAMA_2_7B_TOKEN_BYTES:,} B a token, divided by the {group} heads that share",
            factor=_LLAMA_2_7B_TOKEN_BYTES / group / sizes.token_bytes,
        ),
        Slip(what="divides by the heads that share keys and values twice", factor=1 / group),
        Slip(what="counts bits as bytes", factor=8),
        Slip(what="counts bytes as bits", factor=1 / 8),
    ]
    return tuple(slip for slip in found if abs(slip.factor - 1) > AGREES_WITHIN)


_UNITS = {
    3: "says GiB and means GB",
    2: "says MiB and means MB",
    1: "says KiB and means KB",
    -3: "says GB and means GiB",
    -2: "says MB and means MiB",
    -1: "says KB and means KiB",
}


def judge(stated_bytes: int, right_bytes: int, known: Iterable[Slip], *, rounding_bytes: float = 0.0) -> Judgement:
    """What a stated size is, and why if it is wrong.

    Args:
        stated_bytes: the figure, at least 1.
        right_bytes: what it should be.
        known: slips that could explain it, the likeliest first.
        rounding_bytes: how far the digits it is stated with leave it open; see `rounding`.
    """
    off_bytes = abs(right_bytes - stated_bytes)
    error = right_bytes / stated_bytes - 1
    if off_bytes <= AGREES_WITHIN * stated_bytes:
        verdict = Verdict.AGREES
    elif off_bytes <= rounding_bytes:
        verdict = Verdict.ROUNDED
    elif off_bytes < WRONG_FROM * right_bytes:
        verdict = Verdict.DIFFERS
    else:
        verdict = Verdict.WRONG
    is_off = verdict in (Verdict.DIFFERS, Verdict.WRONG)
    reasons = _explained(stated_bytes, right_bytes, tuple(known), rounding_bytes) if is_off else ()
    return Judgement(verdict=verdict, stated_bytes=stated_bytes, right_bytes=right_bytes, error=error, reasons=reasons)


def _explained(stated_bytes: int, right_bytes: int, known: tuple[Slip, ...], rounding_bytes: float) -> tuple[str, ...]:
    """The single slips that give the figure, or, if none does and it is wrong, the pairs."""
    open_bytes = max(rounding_bytes, _EXPLAINS_WITHIN * stated_bytes)
    single = [s.what for s in known if abs(right_bytes * s.factor - stated_bytes) <= open_bytes]
    if single or abs(right_bytes - stated_bytes) < WRONG_FROM * right_bytes:
        return tuple(single[:_SHOWN_EXPLANATIONS])
    pairs = [
        f"{one.what} and {other.what}"
        for one, other in combinations(known, 2)
        if abs(right_bytes * one.factor * other.factor - stated_bytes) <= open_bytes
    ]
    return tuple(pairs[:_SHOWN_EXPLANATIONS])


_NUMBER = re.compile(r"[0-9][0-9,]*(?:\.[0-9]+)?|\.[0-9]+")


def rounding(text: str, stated_bytes: int) -> float:
    """Half of the last digit that a figure is stated with, in bytes: 5 GB for "340 GB", 0.05 GB for "42.9 GB".

    Args:
        text: begins with the number, or has it first.
        stated_bytes: what it stands for.
    """
    match = _NUMBER.search(text)
    number = Decimal(match.group().replace(",", "")) if match else Decimal(0)
    if not number:
        return 0.0
    exponent = (number if "." in text else number.normalize()).as_tuple().exponent
    last_digit = 10.0 ** int(exponent)
    return last_digit / 2 * stated_bytes / float(number)
