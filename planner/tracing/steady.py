"""Assumptions that stand in for reading values, which tensors without data cannot do. Each is reported."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

_NOT_PACKED = "sequences are assumed not packed"
_NOT_PADDED = "attention masks are assumed to mask no padding"


@contextmanager
def assumptions() -> Iterator[list[str]]:
    """While active, known value-dependent decisions take the answer of an ordinary training batch.

    transformers decides from the values of position ids whether sequences are packed, and from those of
    attention masks whether there is padding; it builds a mask of length × length when either is so or it
    cannot tell (masking_utils, 5.x). A batch of full, unpacked sequences has none.
    """
    notes: list[str] = []

    def answer(value: Any, note: str) -> Any:
        def decide(*_: Any, **__: Any) -> Any:
            if note and note not in notes:
                notes.append(note)
            return value

        return decide

    with ExitStack() as stack:
        for module_name, owner_name, function, value, note in (
            ("transformers.masking_utils", None, "find_packed_sequence_indices", None, _NOT_PACKED),
            ("transformers.masking_utils", None, "fast_all", True, _NOT_PADDED),
            # Only warns.
            (
                "transformers.modeling_utils",
                "PreTrainedModel",
                "warn_if_padding_and_no_attention_mask",
                None,
                "",
            ),
        ):
            owner: Any = sys.modules.get(module_name)
            owner = getattr(owner, owner_name, None) if owner_name else owner
            if hasattr(owner, function):
                stack.enter_context(patch.object(owner, function, answer(value, note)))
        yield notes
