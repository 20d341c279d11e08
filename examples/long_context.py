"""Llama 3 with the loss taken in chunks of the sequence, for llama-3-8b-128k.yaml.

At 131,072 tokens the logits alone are 34 GB in bfloat16 and 67 GB in float32. In chunks only one chunk's are there at a
time in forward; what autograd would save of each is the plan's to drop and compute again.
"""

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaModel


class ChunkedLoss(nn.Module):
    """The head of a language model and its loss, over one chunk of the sequence after the other."""

    def __init__(self, hidden: int, vocabulary: int, chunk: int) -> None:
        super().__init__()
        self.chunk = chunk
        self.head = nn.Linear(hidden, vocabulary, bias=False)

    def forward(self, states: Tensor, labels: Tensor) -> Tensor:
        loss = states.new_zeros((), dtype=torch.float32)
        pieces = zip(states.flatten(0, 1).split(self.chunk), labels.flatten().split(self.chunk), strict=True)
        for piece, wanted in pieces:
            loss = loss + nn.functional.cross_entropy(self.head(piece).float(), wanted, reduction="sum")
        return loss / labels.numel()


class LongContextLlama(nn.Module):
    """Llama 3 that returns its loss; labels are already shifted."""

    def __init__(self, config: LlamaConfig, chunk: int) -> None:
        super().__init__()
        self.model = LlamaModel(config)
        self.loss = ChunkedLoss(config.hidden_size, config.vocab_size, chunk)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        states = self.model(input_ids=tokens, use_cache=False).last_hidden_state
        return self.loss(states, labels)


def llama_3_8b(layers: int = 32, chunk: int = 8192) -> LongContextLlama:
    """Llama 3 8B for 128K tokens (rotary base of Llama 3.1)."""
    config = LlamaConfig(
        vocab_size=128_256,
        hidden_size=4096,
        intermediate_size=14_336,
        num_hidden_layers=layers,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=131_072,
        rope_theta=500_000.0,
        attn_implementation="sdpa",
    )
    return LongContextLlama(config, chunk)
