"""Eighteen dense transformers of different make, small enough to trace in a second or two each."""

from typing import Any

Mapping = dict[str, Any]


def _spec(name: str, config: Mapping, batch: int, length: int, **more: Any) -> Mapping:
    return {
        "model": {"transformers": name, "config": config},
        "batch": {"micro_batch": batch, "sequence_length": length},
        "precision": {"parameters": "bfloat16"},
        **more,
    }


_AUTOCAST = {"precision": {"parameters": "float32", "compute": "bfloat16"}}
_LLAMA: Mapping = {
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "vocab_size": 16000,
}
_GPT2: Mapping = {"n_embd": 768, "n_layer": 4, "n_head": 12, "n_positions": 1024, "vocab_size": 16000}
_NEOX = {k: v for k, v in _LLAMA.items() if k != "num_key_value_heads"} | {"intermediate_size": 4096}
_BERT: Mapping = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 4,
    "num_attention_heads": 12,
    "vocab_size": 16000,
}

DENSE: dict[str, Mapping] = {
    "llama": _spec("LlamaForCausalLM", _LLAMA, 2, 1024),
    "llama under autocast": _spec("LlamaForCausalLM", _LLAMA, 2, 1024, **_AUTOCAST),
    "llama in float32": _spec("LlamaForCausalLM", _LLAMA, 2, 512, precision={"parameters": "float32"}),
    "llama with eager attention": _spec("LlamaForCausalLM", _LLAMA, 2, 512, attention="eager"),
    "llama sharded": _spec("LlamaForCausalLM", _LLAMA, 2, 1024, **_AUTOCAST, parallel={"fsdp": 4}),
    "mistral": _spec("MistralForCausalLM", {**_LLAMA, "sliding_window": None}, 4, 512),
    "qwen2 tied": _spec("Qwen2ForCausalLM", {**_LLAMA, "tie_word_embeddings": True}, 2, 1024),
    "qwen3": _spec("Qwen3ForCausalLM", {**_LLAMA, "head_dim": 128}, 2, 1024),
    "gpt2 under autocast": _spec("GPT2LMHeadModel", _GPT2, 4, 512, **_AUTOCAST),
    "gpt2 with eager attention": _spec("GPT2LMHeadModel", _GPT2, 1, 1024, attention="eager"),
    "gpt-neox": _spec("GPTNeoXForCausalLM", _NEOX, 2, 1024),
    "gpt-neox with eager attention": _spec("GPTNeoXForCausalLM", _NEOX, 2, 512, attention="eager"),
    "opt": _spec(
        "OPTForCausalLM",
        {
            "hidden_size": 1024,
            "ffn_dim": 4096,
            "num_hidden_layers": 4,
            "num_attention_heads": 16,
            "word_embed_proj_dim": 1024,
            "vocab_size": 16000,
        },
        2,
        1024,
    ),
    "gpt-bigcode": _spec("GPTBigCodeForCausalLM", _GPT2, 2, 512),
    "bert": _spec("BertForMaskedLM", _BERT, 8, 512, **_AUTOCAST),
    "bert with eager attention": _spec("BertForMaskedLM", _BERT, 8, 256, **_AUTOCAST, attention="eager"),
    "bert in bfloat16": _spec("BertForMaskedLM", _BERT, 8, 512),
    "bert sharded": _spec("BertForMaskedLM", _BERT, 8, 512, **_AUTOCAST, parallel={"fsdp": 4}),
}

FULL_SIZE: dict[str, Mapping] = {
    "llama 3 8b": {
        "model": {"preset": "llama-3-8b"},
        "batch": {"micro_batch": 1, "sequence_length": 4096},
        "precision": {"parameters": "bfloat16"},
    },
    "qwen3 8b sharded": {
        "model": {"preset": "qwen3-8b"},
        "batch": {"micro_batch": 1, "sequence_length": 4096},
        **_AUTOCAST,
        "parallel": {"fsdp": 8},
    },
    "gpt2": {"model": {"preset": "gpt2"}, "batch": {"micro_batch": 8, "sequence_length": 1024}, **_AUTOCAST},
}
