"""How many bytes keys, values and weights take in the formats that serving engines store them in, scales included."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

from planner.errors import PlannerError

BITS_PER_BYTE = 8


class KvError(PlannerError):
    """A KV cache that cannot be, such as heads that its ranks cannot share; `option` is what asked for it, or None."""

    def __init__(self, message: str, *, option: str | None = None) -> None:
        super().__init__(f"{option}: {message}" if option else message)
        self.option = option


@dataclass(frozen=True, slots=True, kw_only=True)
class KvFormat:
    """A format of key and value vectors.

    Attributes:
        name: such as "bf16".
        bits: of one element.
        block_elements: how many elements share a scale; None for all of a head's vector.
        scale_bytes: scale, and zero point or minimum where there is one, of each block.
        source: where the sizes come from.
    """

    name: str
    bits: int
    block_elements: int | None = None
    scale_bytes: int = 0
    source: str


_GGML = "ggml-common.h of llama.cpp: blocks of 32 elements with half-precision scales"
_PLAIN = "the size of the type"
FORMATS: Mapping[str, KvFormat] = {
    found.name: found
    for found in (
        KvFormat(name="fp32", bits=32, source=_PLAIN),
        KvFormat(name="bf16", bits=16, source=_PLAIN),
        KvFormat(name="fp16", bits=16, source=_PLAIN),
        KvFormat(name="fp8", bits=8, source="vLLM, quantized KV cache: one scale per tensor or head, none per token"),
        KvFormat(name="fp8_per_token_head", bits=8, scale_bytes=4, source="vLLM: one float32 scale per token and head"),
        KvFormat(name="int8", bits=8, scale_bytes=4, source="vLLM, int8_per_token_head: one float32 scale each"),
        KvFormat(
            name="int4",
            bits=4,
            scale_bytes=4,
            source="per token and head, as LMDeploy; assumption: scale and zero point in half precision",
        ),
        KvFormat(name="q8_0", bits=8, block_elements=32, scale_bytes=2, source=_GGML),
        KvFormat(name="q5_1", bits=5, block_elements=32, scale_bytes=4, source=_GGML),
        KvFormat(name="q5_0", bits=5, block_elements=32, scale_bytes=2, source=_GGML),
        KvFormat(name="q4_1", bits=4, block_elements=32, scale_bytes=4, source=_GGML),
        KvFormat(name="q4_0", bits=4, block_elements=32, scale_bytes=2, source=_GGML),
        KvFormat(name="nvfp4", bits=4, block_elements=16, scale_bytes=1, source="NVFP4: an FP8 scale per 16 elements"),
    )
}
_FORMAT_ALIASES: Mapping[str, str] = {
    "auto": "bf16",
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "f16": "fp16",
    "float32": "fp32",
    "f32": "fp32",
    "fp8_e4m3": "fp8",
    "fp8_e5m2": "fp8",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
    "int8_per_token_head": "int8",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFormat:
    """A format of a block's linear layers.

    Attributes:
        name: such as "int4".
        bits: of one weight, with its share of scales and zero points.
        other_bytes: of one element of everything else: embeddings, output matrix, norms, routers.
        source: where the sizes come from.
    """

    name: str
    bits: float
    other_bytes: int = 2
    source: str


WEIGHT_FORMATS: Mapping[str, WeightFormat] = {
    found.name: found
    for found in (
        WeightFormat(name="fp32", bits=32, other_bytes=4, source=_PLAIN),
        WeightFormat(name="bf16", bits=16, source=_PLAIN),
        WeightFormat(name="fp16", bits=16, source=_PLAIN),
        WeightFormat(name="fp8", bits=8, source="scales per tensor, channel or 128 × 128 block: under 0.1%"),
        WeightFormat(name="int8", bits=8, source="scales per output channel: under 0.1%"),
        WeightFormat(
            name="int4", bits=4 + 16 / 128 + 4 / 128, source="AWQ and GPTQ: 128 share a half scale and a 4-bit zero"
        ),
        WeightFormat(name="nvfp4", bits=4 + 8 / 16, source="NVFP4: an FP8 scale per 16 elements"),
    )
}
_WEIGHT_ALIASES: Mapping[str, str] = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "awq": "int4"}


def kv_format(name: str) -> KvFormat:
    """The KV format of that name, or of one that engines call it.

    Raises:
        KvError: there is no such format.
    """
    lowered = name.lower()
    if (known := _FORMAT_ALIASES.get(lowered, lowered)) in FORMATS:
        return FORMATS[known]
    raise KvError(_unknown("KV format", name, (*FORMATS, *_FORMAT_ALIASES), tuple(FORMATS)), option="--dtype")


def weight_format(name: str) -> WeightFormat:
    """The weight format of that name.

    Raises:
        KvError: there is no such format.
    """
    lowered = name.lower()
    if (known := _WEIGHT_ALIASES.get(lowered, lowered)) in WEIGHT_FORMATS:
        return WEIGHT_FORMATS[known]
    message = _unknown("weight format", name, (*WEIGHT_FORMATS, *_WEIGHT_ALIASES), tuple(WEIGHT_FORMATS))
    raise KvError(f"{message}, or a size such as 8.58GiB", option="--weights")


def _unknown(what: str, name: str, accepted: tuple[str, ...], listed: tuple[str, ...]) -> str:
    close = difflib.get_close_matches(name.lower(), accepted, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"use one of {', '.join(listed)}"
    return f"unknown {what} {name[:40]!r}; {hint}"


def is_whole(how: KvFormat, width: int) -> bool:
    """Whether a vector of that width is a whole number of the format's blocks."""
    return how.block_elements is None or width % how.block_elements == 0


def vector_bytes(how: KvFormat, width: int) -> int:
    """The bytes of one head's key or value vector.

    Raises:
        KvError: the width is no whole number of the format's blocks.
    """
    if how.block_elements is None:
        return -(-width * how.bits // BITS_PER_BYTE) + how.scale_bytes
    if not is_whole(how, width):
        message = f"{how.name} stores blocks of {how.block_elements} elements, and a head's vector has {width}"
        raise KvError(f"{message}; use a format without blocks, such as fp8 or int8", option="--dtype")
    return width // how.block_elements * (how.block_elements * how.bits // BITS_PER_BYTE + how.scale_bytes)


def vector_formula(how: KvFormat, width: str | int) -> str:
    """How `vector_bytes` comes to its result, with the values put in."""
    shown = f"({width})" if isinstance(width, str) else str(width)
    if how.block_elements is not None:
        block = how.block_elements * how.bits // BITS_PER_BYTE + how.scale_bytes
        return f"{shown} / {how.block_elements} × {block} B"
    element = f"{shown} × {how.bits / BITS_PER_BYTE:g} B"
    return f"({element} + {how.scale_bytes} B of scales)" if how.scale_bytes else element
