"""Tiny models that train on this CPU, one batch for each, and what one step of them gives."""

import importlib.util
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

Batch = dict[str, Tensor]
_UNET = Path(__file__).parents[2] / "examples" / "unet.py"
_VOCABULARY = 96


@dataclass(frozen=True)
class Case:
    """A model in training mode and a way to make batches for it."""

    model: nn.Module
    batch: Callable[[], Batch]


def tokens(batch: int = 4, length: int = 24) -> Callable[[], Batch]:
    def make() -> Batch:
        ids = torch.randint(0, _VOCABULARY, (batch, length))
        return {"input_ids": ids, "labels": ids.clone()}

    return make


def llama(**options: Any) -> Case:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=_VOCABULARY,
        hidden_size=32,
        intermediate_size=80,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        use_cache=False,
        **options,
    )
    return Case(transformers.LlamaForCausalLM(config), tokens())


def gpt2(layers: int = 2) -> Case:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=_VOCABULARY,
        n_embd=32,
        n_layer=layers,
        n_head=4,
        n_positions=32,
        use_cache=False,
        bos_token_id=0,
        eos_token_id=0,
        loss_type="ForCausalLM",
    )
    return Case(transformers.GPT2LMHeadModel(config), tokens())


def bert() -> Case:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=_VOCABULARY,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=32,
    )
    return Case(transformers.BertForMaskedLM(config), tokens())


def t5() -> Case:
    transformers = pytest.importorskip("transformers")
    config = transformers.T5Config(
        vocab_size=_VOCABULARY,
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_heads=4,
        use_cache=False,
        decoder_start_token_id=0,
    )
    return Case(transformers.T5ForConditionalGeneration(config), tokens())


def vit() -> Case:
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        image_size=32,
        patch_size=8,
        num_labels=10,
        hidden_dropout_prob=0.1,
    )
    return Case(transformers.ViTForImageClassification(config), images("pixel_values"))


def resnet() -> Case:
    transformers = pytest.importorskip("transformers")
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[2, 2], layer_type="bottleneck", num_labels=10
    )
    return Case(transformers.ResNetForImageClassification(config), images("pixel_values"))


def images(name: str) -> Callable[[], Batch]:
    return lambda: {name: torch.randn(4, 3, 32, 32), "labels": torch.randint(0, 10, (4,))}


class _Segmenter(nn.Module):
    """The U-Net of the examples, with its loss."""

    def __init__(self) -> None:
        super().__init__()
        spec = importlib.util.spec_from_file_location("unet", _UNET)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        self.unet = module.UNet(width=8, depth=2, channels=3, classes=2)

    def forward(self, image: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.unet(image), labels)


def unet() -> Case:
    return Case(_Segmenter(), lambda: {"image": torch.randn(2, 3, 16, 16), "labels": torch.randint(0, 2, (2, 16, 16))})


def whisper() -> Case:
    transformers = pytest.importorskip("transformers")
    config = transformers.WhisperConfig(
        vocab_size=_VOCABULARY,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        num_mel_bins=8,
        max_source_positions=16,
        max_target_positions=32,
        pad_token_id=0,
        bos_token_id=0,
        eos_token_id=0,
        decoder_start_token_id=0,
        suppress_tokens=None,
        begin_suppress_tokens=None,
        use_cache=False,
        dropout=0.1,
    )
    return Case(
        transformers.WhisperForConditionalGeneration(config),
        lambda: {"input_features": torch.randn(2, 8, 32), "labels": torch.randint(0, _VOCABULARY, (2, 12))},
    )


def mixtral() -> Case:
    transformers = pytest.importorskip("transformers")
    config = transformers.MixtralConfig(
        vocab_size=_VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
        use_cache=False,
    )
    return Case(transformers.MixtralForCausalLM(config).to(torch.bfloat16), tokens())


def mamba() -> Case:
    transformers = pytest.importorskip("transformers")
    config = transformers.MambaConfig(
        vocab_size=_VOCABULARY, hidden_size=16, state_size=4, num_hidden_layers=2, use_cache=False
    )
    return Case(transformers.MambaForCausalLM(config), tokens(batch=2, length=8))


def lora() -> Case:
    peft = pytest.importorskip("peft")
    options = peft.LoraConfig(
        r=4, lora_dropout=0.1, target_modules=["q_proj", "v_proj", "down_proj"], task_type="CAUSAL_LM"
    )
    inner = llama()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # peft uses what transformers is about to drop
        return Case(peft.get_peft_model(inner.model, options), inner.batch)


MODELS: dict[str, Callable[[], Case]] = {
    "llama": llama,
    "gpt2": gpt2,
    "bert": bert,
    "resnet": resnet,
    "unet": unet,
    "t5": t5,
    "vit": vit,
    "whisper": whisper,
    "mixtral": mixtral,
    "mamba": mamba,
    "lora": lora,
}


def build(name: str) -> Case:
    torch.manual_seed(0)
    case = MODELS[name]()
    case.model.train()
    return case


@dataclass(frozen=True)
class Result:
    """What a step gives."""

    loss: Tensor
    gradients: dict[str, Tensor]
    buffers: dict[str, Tensor]


def loss_of(output: Any) -> Tensor:
    return output if isinstance(output, Tensor) else output.loss  # type: ignore[no-any-return]


def run_step(case: Case, seed: int) -> Result:
    """One forward and backward on a batch of its own."""
    torch.manual_seed(seed)
    case.model.zero_grad(set_to_none=True)
    loss = loss_of(case.model(**case.batch()))
    loss.backward()  # type: ignore[no-untyped-call]
    return result_of(case.model, loss)


def result_of(model: nn.Module, loss: Tensor) -> Result:
    return Result(
        loss.detach().clone(),
        {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None},
        {name: buffer.clone() for name, buffer in model.named_buffers()},
    )


def difference(expected: Result, found: Result) -> str:
    """What differs first in two results, bit by bit; empty if nothing does."""
    if not torch.equal(expected.loss, found.loss):
        return f"loss {found.loss} instead of {expected.loss}"
    for what in ("gradients", "buffers"):
        wanted, had = getattr(expected, what), getattr(found, what)
        if list(wanted) != list(had):
            return f"{what} of {sorted(set(wanted) ^ set(had))}"
        for name, tensor in wanted.items():
            if not torch.equal(tensor, had[name]):
                return f"{what} of {name}"
    return ""
