"""Small models with real weights, and independent observers of a real CPU step to hold traces against."""

import weakref
from collections.abc import Callable
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
        vocab_size=512,
        n_embd=64,
        n_layer=3,
        n_head=4,
        n_positions=64,
        use_cache=False,
        attn_implementation="sdpa",
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


def resnet(width: int = 16) -> Case:
    config = transformers.ResNetConfig(
        embedding_size=width,
        hidden_sizes=[width, 2 * width],
        depths=[2, 2],
        layer_type="bottleneck",
        num_labels=10,
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
    "wide resnet": lambda: resnet(width=64),
}
_COMPARED = ("llama", "gpt2", "bert", "vit", "resnet")


@dataclass
class Observed:
    """What a real step showed.

    Attributes:
        saved: (module path, producing op, shape, dtype) of each saved tensor in order; the op is empty for
            what the step did not make.
        forward_ops: names of the operators that forward and loss dispatched.
    """

    saved: list[tuple[str, str, tuple[int, ...], str]] = field(default_factory=list)
    forward_ops: list[str] = field(default_factory=list)


class _Producers(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Remembers by data address which op wrote a real tensor last, as long as its storage lives."""

    def __init__(self, observed: Observed) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.observed = observed
        self.by_storage: dict[int, str] = {}
        self.watches: list[Any] = []
        self.is_forward = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "prim":
            return func(*args, **(kwargs or {}))
        if self.is_forward:
            self.observed.forward_ops.append(str(func))
        known = {leaf.untyped_storage()._cdata for leaf in tree_leaves((args, kwargs)) if torch.is_tensor(leaf)}
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if torch.is_tensor(leaf):
                storage = leaf.untyped_storage()
                if storage._cdata not in known:
                    self.watches.append(weakref.ref(storage, self._forget(storage._cdata)))
                    self.by_storage[storage._cdata] = str(func)
                elif str(func).rpartition(".")[0].endswith("_"):
                    self.by_storage[storage._cdata] = str(func)
        return result

    def _forget(self, address: int) -> Callable[[Any], None]:
        def forget(_: Any) -> None:
            self.by_storage.pop(address, None)

        return forget


def observe(run: Callable[[], torch.Tensor], module: torch.nn.Module) -> Observed:
    """What one real forward and backward shows; `run` returns the loss."""
    observed = Observed()
    paths = {child: name for name, child in module.named_modules()}
    stack = [""]
    producers = _Producers(observed)

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        op = producers.by_storage.get(tensor.untyped_storage()._cdata, "")
        observed.saved.append((stack[-1], op, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")))
        return tensor

    def enter(child: torch.nn.Module, inputs: Any) -> None:
        if child in paths:  # some models make a loss module on the fly
            stack.append(paths[child])

    def leave(child: torch.nn.Module, inputs: Any, output: Any) -> None:
        if child in paths:
            stack.pop()

    handles = [
        torch.nn.modules.module.register_module_forward_pre_hook(enter),
        torch.nn.modules.module.register_module_forward_hook(leave),
    ]
    try:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), producers:
            loss = run()
            producers.is_forward = False
            loss.backward()  # type: ignore[no-untyped-call]
    finally:
        for handle in handles:
            handle.remove()
    module.zero_grad(set_to_none=True)
    return observed


def allocator_curve(run: Callable[[], Any]) -> list[int]:
    """Bytes that the CPU allocator holds on top of what was there before, after each of its events during a
    run.
    """
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        held = run()
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    del held
    return list(accumulate(event.nbytes() for event in events))


@pytest.fixture(name="observe")
def observe_fixture() -> Callable[..., Observed]:
    return observe


@pytest.fixture(name="allocator_curve")
def allocator_curve_fixture() -> Callable[[Callable[[], Any]], list[int]]:
    return allocator_curve


@pytest.fixture(params=_COMPARED)
def case(request: pytest.FixtureRequest, unpacked: None) -> Case:
    torch.manual_seed(0)
    return MODELS[request.param]()


@pytest.fixture
def build() -> Callable[[str], Case]:
    """Makes one of the models by name."""
    return lambda name: MODELS[name]()


@pytest.fixture
def unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Real runs, too, skip the search for packed sequences, which traces assume away and say so."""
    monkeypatch.setattr(transformers.masking_utils, "find_packed_sequence_indices", lambda *_, **__: None)
