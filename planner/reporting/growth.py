"""What `planner estimate --lengths` prints: what one block keeps for backward, by tensor and length."""

from collections.abc import Sequence
from typing import Any

from planner.estimation.blocks import AttentionKind
from planner.estimation.growth import BlockGrowth
from planner.reporting.tables import gigabytes, table, wrapped

_KERNELS = {AttentionKind.EAGER: "eager attention", AttentionKind.FUSED: "flash attention"}
_POWERS = {0: "1", 1: "L", 2: "L²"}


def growth_text(model: str, layers: int, found: Sequence[BlockGrowth]) -> str:
    """The tables for a person."""
    parts = [
        wrapped(f"{model}: what one of {layers} blocks keeps for backward, by length of the sequence L"),
        *(_kernel(one) for one in found),
        _comparison(layers, found),
    ]
    return "\n\n".join("\n".join(part) for part in parts)


def growth_document(model: str, layers: int, found: Sequence[BlockGrowth]) -> dict[str, Any]:
    """The same for a program. All sizes are whole bytes, of one block, one at each length."""
    return {
        "model": model,
        "layers": layers,
        "lengths": list(found[0].lengths),
        "kernels": [
            {
                "attention": str(one.attention),
                "kept_bytes": list(one.kept_bytes),
                "attention_bytes": list(one.attention_bytes),
                "quadratic_bytes": list(one.quadratic_bytes),
                "scores_bytes": list(one.scores_bytes),
                "input_bytes": list(one.input_bytes),
                "selective_bytes": list(one.selective_bytes),
                "tensors": [
                    {
                        "name": tensor.name,
                        "dtype": tensor.dtype,
                        "is_attention": tensor.is_attention,
                        "power": tensor.power,
                        "bytes": list(tensor.size_bytes),
                    }
                    for tensor in one.tensors
                ],
            }
            for one in found
        ],
    }


def _kernel(found: BlockGrowth) -> list[str]:
    header = (f"With {_KERNELS[found.attention]}", "dtype", "grows as", *(f"{length:,}" for length in found.lengths))
    rows = [(t.name, t.dtype, _POWERS[t.power], *_sizes(t.size_bytes)) for t in found.tensors]
    return table(header, [*rows, ("all of it", "", "", *_sizes(found.kept_bytes))], left=3)


def _comparison(layers: int, found: Sequence[BlockGrowth]) -> list[str]:
    lengths = found[0].lengths
    eager, fused = found
    rows = [
        ("one matrix of scores, while eager attention runs", *_sizes(eager.scores_bytes)),
        ("kept by attention: eager", *_sizes(eager.attention_bytes)),
        ("kept by attention: flash", *_sizes(fused.attention_bytes)),
        ("eager ÷ flash", *(f"{a / b:.1f}" for a, b in zip(eager.attention_bytes, fused.attention_bytes, strict=True))),
        *(
            (f"{layers} blocks, {kernel}: {name}", *_sizes(tuple(layers * size for size in sizes)))
            for one, kernel in ((eager, "eager"), (fused, "flash"))
            for name, sizes in (
                ("no checkpointing", one.kept_bytes),
                ("selective", one.selective_bytes),
                ("every block", one.input_bytes),
            )
        ),
    ]
    return table(("In all", *(f"{length:,}" for length in lengths)), rows)


def _sizes(sizes: tuple[int, ...]) -> tuple[str, ...]:
    return tuple(gigabytes(size) for size in sizes)
