"""Assumptions that stand in for reading values, which tensors without data cannot do. Each is reported."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch


@contextmanager
def assumptions() -> Iterator[list[str]]:
    """While active, known value-dependent decisions take the answer of an ordinary unpacked training batch.

    transformers decides from the values of position ids whether sequences are packed, and builds a [1, 1, S, S] mask when
    it cannot tell (masking_utils, 5.x); a real unpacked run builds none.
    """
    notes: list[str] = []
    masking: Any = sys.modules.get("transformers.masking_utils")
    if masking is None or not hasattr(masking, "find_packed_sequence_indices"):
        yield notes
        return

    def not_packed(*_: Any, **__: Any) -> None:
        if not notes:
            notes.append("sequences are assumed not packed")

    with patch.object(masking, "find_packed_sequence_indices", not_packed):
        yield notes
