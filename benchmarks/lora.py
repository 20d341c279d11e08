"""A small Llama with LoRA adapters on some of its layers, for `peak_accuracy.py`."""

import peft
import torch
import transformers


def build() -> torch.nn.Module:
    config = transformers.LlamaConfig(
        vocab_size=1000,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    options = peft.LoraConfig(
        r=8, lora_dropout=0.1, target_modules=["q_proj", "v_proj", "down_proj"], task_type="CAUSAL_LM"
    )
    return peft.get_peft_model(transformers.LlamaForCausalLM(config), options)
