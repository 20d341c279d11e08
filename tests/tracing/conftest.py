"""Small models with real weights, and independent observers of a real CPU step to hold traces against."""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

transformers = pytest.importorskip("transformers")

Case = tuple[torch.nn.Module, dict[str, torch.Tensor]]


def _tokens(batch: int, length: int, vocabulary: int) -> torch.Tensor:
    return torch.randint(0, vocabulary, (batch, length), generator=torch.Generator().manual_seed(0))


def llama(**options: Any) -> Case:
    config = transformers.LlamaConfig(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        use_cache=False,
        attn_implementation="sdpa",
        **options,
    )
    tokens = _tokens(2, 48, 512)
    return transformers.LlamaForCausalLM(config).train(), {"input_ids": tokens, "labels": tokens}


def gpt2() -> Case:
    config = transformers.GPT2Config(
        vocab_size=512, n_embd=64, n_layer=3, n_head=4, n_positions=64, use_cache=False, attn_implementation="sdpa"
    )
    tokens = _tokens(2, 48, 512)
    return transformers.GPT2LMHeadModel(config).train(), {"input_ids": tokens, "labels": tokens}


def bert() -> Case:
    config = transformers.BertConfig(
        vocab_size=512,
        hidden_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=160,
        max_position_embeddings=64,
        attn_implementation="sdpa",
    )
    tokens = _tokens(2, 48, 512)
    return transformers.BertForMaskedLM(config).train(), {"input_ids": tokens, "labels": tokens}


def vit() -> Case:
    config = transformers.ViTConfig(
        hidden_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=160,
        image_size=32,
        patch_size=8,
        num_labels=10,
        attn_implementation="sdpa",
    )
    pixels = torch.randn(4, 3, 32, 32)
    return transformers.ViTForImageClassification(config).train(), {
        "pixel_values": pixels,
        "labels": torch.randint(0, 10, (4,)),
    }


def resnet() -> Case:
    config = transformers.ResNetConfig(
        embedding_size=16, hidden_sizes=[16, 32], depths=[2, 2], layer_type="bottleneck", num_labels=10
    )
    return transformers.ResNetForImageClassification(config).train(), {
        "pixel_values": torch.randn(4, 3, 64, 64),
        "labels": torch.randint(0, 10, (4,)),
    }


MODELS: dict[str, Callable[[], Case]] = {
    "llama": llama,
    "gpt2": gpt2,
    "bert": bert,
    "vit": vit,
    "resnet": resnet,
}
