"""What one block keeps for backward, tensor by tensor, and with which power of the sequence length each grows.

Eager attention and a fused kernel side by side, whatever the run says. Memory of the rest of the step is
`planner.estimation.verdict`'s. What a kernel needs only while it runs is left out, but for the scores.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log2

from planner.estimation.blocks import AttentionKind, Section
from planner.estimation.estimate import sections_of
from planner.estimation.run import Run
from planner.estimation.step import Checkpointing, kept_tensors
from planner.estimation.tape import saved_storages

_SCORES = "attention scores"
# Weights that autocast casts are kept, too, but once for a step and not for its tokens.
_CAST = "weight cast"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptTensor:
    """A saved tensor of a block.

    Attributes:
        name: as the block's tape has it.
        dtype: its elements'.
        is_attention: the attention kernel reads it in backward, or made it.
        power: of the sequence length, with which it grows.
        size_bytes: at each length.
    """

    name: str
    dtype: str
    is_attention: bool
    power: int
    size_bytes: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockGrowth:
    """What one block keeps with one kind of attention kernel; all sizes are in bytes, at each length.

    Attributes:
        attention: the kernel.
        lengths: tokens of a sequence.
        tensors: all that autograd saves, in the order of forward; cast weights left out.
        scores_bytes: one matrix of scores, alive while eager attention runs; 0 with a fused kernel.
        input_bytes: what a checkpointed block keeps.
        selective_bytes: what a block keeps that replays all but its matrix products and attention.
    """

    attention: AttentionKind
    lengths: tuple[int, ...]
    tensors: tuple[KeptTensor, ...]
    scores_bytes: tuple[int, ...]
    input_bytes: tuple[int, ...]
    selective_bytes: tuple[int, ...]

    @property
    def kept_bytes(self) -> tuple[int, ...]:
        """All that autograd saves."""
        return _sums([t.size_bytes for t in self.tensors], len(self.lengths))

    @property
    def attention_bytes(self) -> tuple[int, ...]:
        """Of that, what attention reads in backward or made."""
        return _sums([t.size_bytes for t in self.tensors if t.is_attention], len(self.lengths))

    @property
    def quadratic_bytes(self) -> tuple[int, ...]:
        """Of that, what grows with the square of the length."""
        return _sums([t.size_bytes for t in self.tensors if t.power == 2], len(self.lengths))


def growth(run: Run, lengths: Sequence[int]) -> tuple[BlockGrowth, ...]:
    """For eager attention and for a fused kernel, what a block of the run keeps at these lengths."""
    return tuple(_growth(run, kind, tuple(lengths)) for kind in (AttentionKind.EAGER, AttentionKind.FUSED))


def _growth(run: Run, kind: AttentionKind, lengths: tuple[int, ...]) -> BlockGrowth:
    sections = [_section(run, kind, length) for length in lengths]
    doubled = _section(run, kind, 2 * lengths[0])
    first = sections[0]
    attention = _attention(first)
    tensors = tuple(
        KeptTensor(
            name=tensor.name,
            dtype=tensor.dtype,
            is_attention=tensor.index in attention,
            power=round(log2(doubled.tape.tensors[tensor.index].size_bytes / tensor.size_bytes)),
            size_bytes=tuple(one.tape.tensors[tensor.index].size_bytes for one in sections),
        )
        for tensor in saved_storages(first.tape)
        if _CAST not in tensor.name and tensor.size_bytes
    )
    return BlockGrowth(
        attention=kind,
        lengths=lengths,
        tensors=tensors,
        scores_bytes=tuple(sum(t.size_bytes for t in one.tape.tensors if t.name == _SCORES) for one in sections),
        input_bytes=tuple(_kept(one, Checkpointing.BLOCK) for one in sections),
        selective_bytes=tuple(_kept(one, Checkpointing.SELECTIVE) for one in sections),
    )


def _section(run: Run, kind: AttentionKind, length: int) -> Section:
    """The last block: where a model begins with dense layers, one with experts."""
    _, blocks, _ = sections_of(replace(run, attention=kind, length=length))
    return blocks[-1]


def _attention(section: Section) -> set[int]:
    """The storages that the attention kernel, written out or fused, saves or makes."""
    tensors = section.tape.tensors
    ops = [op for op in section.tape.ops if op.name.startswith("attention") and "residual" not in op.name]
    return {tensors[t].storage for op in ops for t in (*op.saves, *op.writes)}


def _kept(section: Section, mode: Checkpointing) -> int:
    return sum(t.size_bytes for t in kept_tensors(section, mode))


def _sums(rows: Sequence[tuple[int, ...]], width: int) -> tuple[int, ...]:
    return tuple(sum(row[place] for row in rows) for place in range(width))
