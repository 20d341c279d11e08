"""Losses that the planner itself puts in the place of a model's own, to trace what they would come to.

They act on what forward returns, so the model's output matrix still makes all logits at once.
"""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  # as everywhere

# Source: torchtune, CEWithChunkedOutputLoss, `num_output_chunks`.
CHUNKS = 8


def chunked_cross_entropy(output: Any, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """The cross entropy of a language model's logits, a few tokens at a time; the output loses its logits.

    So only the log-probabilities are there whole in float32: neither the logits, which the trainer lets go before
    backward, nor any gradient. Tokens are not shifted, which changes no size worth counting.

    Source: torchtune, CEWithChunkedOutputLoss, and its recipes, which delete the logits before backward.
    """
    logits = output["logits"].flatten(0, -2)
    output["logits"] = None
    labels = inputs["input_ids"].flatten()
    part = -(-len(labels) // CHUNKS)
    losses = [
        F.cross_entropy(some.float(), theirs, reduction="sum")
        for some, theirs in zip(torch.split(logits, part), torch.split(labels, part), strict=True)
    ]
    return torch.stack(losses).sum() / len(labels)
