"""A spec becomes a module and its inputs, or one sentence that says what to change; a trace that fails
leaves nothing.
"""

import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from planner import spec as specs
from planner.errors import PlannerError, SpecError, TraceError
from planner.graph import OpGraph, Phase, ops, saved_tensors, step_info
from planner.spec import RunSpec
from planner.tracing import trace_module, trace_spec

EXAMPLES = Path(__file__).parents[2] / "examples"


def of(model: dict[str, Any], **rest: Any) -> RunSpec:
    return specs.from_mapping({"model": model, "batch": {"micro_batch": 2, "sequence_length": 16}, **rest})


def small(name: str, **config: Any) -> RunSpec:
    return of({"transformers": name, "config": config})


SMALL_T5 = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 1, "num_heads": 4, "vocab_size": 64}
SMALL_GEMMA_2 = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 64,
}


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Writes spec text, and perhaps a Python module beside it."""

    def write_files(text: str, **modules: str) -> Path:
        for name, source in modules.items():
            (tmp_path / f"{name}.py").write_text(source)
        path = tmp_path / "model.yaml"
        path.write_text(text)
        return path

    return write_files


# -- models that have their own needs
# ----------------------------------------------------------------------------


def test_an_encoder_decoder_without_a_start_token_starts_with_padding() -> None:
    graph = trace_spec(small("T5ForConditionalGeneration", **SMALL_T5))

    assert "the config has no decoder_start_token_id: 0 is assumed" in step_info(graph).notes
    assert any(s.module_fqn.startswith("decoder.") for s in saved_tensors(graph))


def test_an_architecture_without_fused_attention_says_so() -> None:
    graph = trace_spec(small("Gemma2ForCausalLM", **SMALL_GEMMA_2))

    assert "eager" == step_info(graph).attention
    assert "Gemma2ForCausalLM has no scaled_dot_product_attention form" in step_info(graph).notes[0]
    assert (2, 4, 16, 16) in {s.shape for s in saved_tensors(graph)}


def test_padding_masks_a_model_makes_itself_are_assumed_to_mask_nothing() -> None:
    graph = trace_spec(
        small(
            "BartForConditionalGeneration",
            d_model=32,
            encoder_layers=1,
            decoder_layers=1,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=64,
            decoder_ffn_dim=64,
            vocab_size=64,
        )
    )

    assert "attention masks are assumed to mask no padding" in step_info(graph).notes


def test_the_products_of_experts_are_counted() -> None:
    """Each of 32 tokens goes to 2 experts: up to 2 × 16 features, and down from 16. Backward does twice that."""
    config = {
        "hidden_size": 32,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "vocab_size": 64,
    }
    model = {"transformers": "MixtralForCausalLM", "config": config}

    graph = trace_spec(of(model, precision={"parameters": "bfloat16"}))

    products = [op for op in ops(graph) if op.name == "aten._grouped_mm.default"]
    forward = 2 * (32 * 2) * 32 * (2 * 16 + 16)
    assert [forward, 2 * forward] == [sum(op.flops for op in products if op.phase is phase) for phase in Phase]


def test_a_factory_may_be_an_attribute_of_a_class(write: Callable[..., Path]) -> None:
    path = write(
        "model: {factory: 'zoo:Zoo.build'}\ninputs: {input: {shape: [2, 4], dtype: float32}}\n",
        zoo="import torch\nclass Zoo:\n    build = staticmethod(lambda: torch.nn.Linear(4, 4))\n",
    )

    assert 20 == step_info(trace_spec(specs.load(path))).parameters


def test_the_unet_example_is_traced_with_the_mean_of_its_output_as_loss() -> None:
    spec = specs.load(EXAMPLES / "unet.yaml")

    graph = trace_spec(spec)

    assert ("unet:build", 8) == (step_info(graph).model, step_info(graph).tokens)
    skips = [op for op in ops(graph) if op.name == "aten.cat.default"]
    assert [(8, 1024, 64, 64), (8, 512, 128, 128), (8, 256, 256, 256), (8, 128, 512, 512)] == [op.shape for op in skips]


def test_a_loss_of_ones_own_is_differentiated(write: Callable[..., Path]) -> None:
    path = write(
        "model: {factory: 'own_loss:build'}\nloss: 'own_loss:loss'\ninputs: {input: {shape: [2, 4], dtype: float32}}\n",
        own_loss="import torch\ndef build(): return torch.nn.Linear(4, 4)\n"
        "def loss(output, inputs): return (output - inputs['input']).abs().sum()\n",
    )

    graph = trace_spec(specs.load(path))

    assert "aten.abs.default" in [op.name for op in ops(graph)]


# -- specs that cannot be built
# -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "key", "message"),
    [
        ("{transformers: LlamaForCausalLMM}", "model.transformers", "did you mean 'LlamaForCausalLM'?"),
        ("{transformers: LlamaConfig}", "model.transformers", "is no PreTrainedModel"),
        (
            "{transformers: LlamaForCausalLM,\n  config: {hiden_size: 8}}",
            "model.config.hiden_size",
            "hidden_size",
        ),
        (
            "{transformers: LlamaForCausalLM,\n  config: {hidden_size: x}}",
            "model.config.hidden_size",
            "expected int, got str",
        ),
        (
            "{transformers: LlamaForCausalLM,\n  config: {hidden_size: 65}}",
            "model.transformers",
            "hidden size (65) is not a multiple",
        ),
        ("{factory: 'no_such_module:build'}", "model.factory", "cannot import no_such_module"),
        ("{factory: 'factories:bild'}", "model.factory", "did you mean 'build'?"),
        (
            "{factory: 'factories:build', arguments: {n: 1}}",
            "model.factory",
            "unexpected keyword argument 'n'",
        ),
        ("{factory: 'factories:fails'}", "model.factory", "raised RuntimeError: no luck"),
        ("{factory: 'factories:no_module'}", "model.factory", "returned a dict, expected a torch.nn.Module"),
        ("{factory: 'factories:empty'}", "model.factory", "has no parameters"),
        ("{factory: 'broken:build'}", "model.factory", "importing broken failed: ValueError: at import"),
    ],
)
def test_a_model_that_cannot_be_built_is_one_located_error(
    model: str, key: str, message: str, write: Callable[..., Path]
) -> None:
    path = write(
        f"batch: {{micro_batch: 1, sequence_length: 8}}\nmodel: {model}\n",
        factories="import torch\n"
        "def build(): return torch.nn.Linear(4, 4)\n"
        "def fails(): raise RuntimeError('no luck')\n"
        "def no_module(): return {}\n"
        "def empty(): return torch.nn.ReLU()\n",
        broken="raise ValueError('at import')\n",
    )

    with pytest.raises(SpecError) as caught:
        trace_spec(specs.load(path))

    assert key == caught.value.key
    assert message in str(caught.value)
    expected_line = 3 if key.startswith("model.config.") else 2
    assert (str(path), expected_line) == (caught.value.path, caught.value.line)
    sys.modules.pop("factories", None)


def test_a_key_without_a_line_of_its_own_is_reported_at_the_one_around_it(write: Callable[..., Path]) -> None:
    spec = specs.load(write("model: {preset: gpt2}\nbatch:\n  micro_batch: 1\n"))

    with pytest.raises(SpecError, match="reads tokens, so it needs sequence_length") as caught:
        trace_spec(spec)

    assert ("batch.sequence_length", 2) == (caught.value.key, caught.value.line)


def test_a_spec_from_a_mapping_has_no_lines() -> None:
    assert {} == of({"preset": "gpt2"}).lines


def test_a_factory_needs_its_inputs_described(write: Callable[..., Path]) -> None:
    path = write(
        "model: {factory: 'plain:build'}\nbatch: {micro_batch: 1}\n",
        plain="import torch\ndef build(): return torch.nn.Linear(4, 4)\n",
    )

    with pytest.raises(SpecError, match="describe it under `inputs`"):
        trace_spec(specs.load(path))


def test_a_model_whose_config_has_no_sizes_needs_its_inputs_described() -> None:
    parts = {"encoder": {"model_type": "vit", "num_hidden_layers": 1}, "decoder": {"model_type": "gpt2", "n_layer": 1}}

    with pytest.raises(SpecError, match="VisionEncoderDecoderModel takes pixel_values; give its shape under `inputs`"):
        trace_spec(small("VisionEncoderDecoderModel", **parts))


def test_a_sequence_longer_than_the_position_table_is_refused() -> None:
    spec = of({"preset": "gpt2"}, batch={"micro_batch": 1, "sequence_length": 1025})

    with pytest.raises(SpecError, match="1025 is more than the 1024 positions"):
        trace_spec(spec)


def test_a_config_key_nobody_knows_is_a_note() -> None:
    graph = trace_spec(small("GPT2LMHeadModel", n_layer=1, n_embd=32, n_head=4, vocab_size=64, zzz=1))

    assert "GPT2Config has no key zzz, which is ignored" in step_info(graph).notes


# -- steps that cannot be traced
# ----------------------------------------------------------------------------------


class Failing(nn.Module):
    """Calls a function of x in a submodule named `part`."""

    def __init__(self, function: Callable[[nn.Linear, torch.Tensor], Any]) -> None:
        super().__init__()
        self.part = _Part(function)

    def forward(self, x: torch.Tensor) -> Any:
        return self.part(x)


class _Part(nn.Module):
    def __init__(self, function: Callable[[nn.Linear, torch.Tensor], Any]) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self.linear, x)


def _interrupt(linear: nn.Linear, x: torch.Tensor) -> Any:
    raise KeyboardInterrupt


def _nothing(linear: nn.Linear, x: torch.Tensor) -> None:
    linear(x)


FAILURES = {
    "reads a value": (lambda linear, x: linear(x) * x.sum().item(), "part", "tensors without data"),
    "branches on a value": (
        lambda linear, x: linear(x) if x.sum() > 0 else x,
        "part",
        "tensors without data",
    ),
    "other device": (lambda linear, x: linear(x.to("cpu")), "part", "tensors without data"),
    "wrong shape": (lambda linear, x: linear(x[:, :3]), "part.linear", "RuntimeError"),
    "sparse": (lambda linear, x: torch.sparse.mm(x.to_sparse(), linear.weight), "part", "sparse"),
    "nothing": (_nothing, None, "forward returned nothing without a floating-point tensor"),
    "integers": (lambda linear, x: linear(x).argmax(), None, "forward returned a Tensor without"),
    "no gradient": (lambda linear, x: linear(x).detach(), None, "that requires a gradient"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_step_that_cannot_be_traced_is_one_error(name: str) -> None:
    function, module_fqn, message = FAILURES[name]

    with pytest.raises(TraceError) as caught:
        trace_module(Failing(function), (torch.randn(2, 4),))

    assert message in str(caught.value)
    assert (module_fqn or None) == (caught.value.module_fqn or None)


def test_sparse_gradients_are_refused() -> None:
    with pytest.raises(TraceError, match="sparse"):
        trace_module(nn.Embedding(8, 4, sparse=True), (torch.tensor([1, 2]),))


def test_a_module_without_parameters_has_nothing_to_train() -> None:
    with pytest.raises(TraceError, match="ReLU has no parameters"):
        trace_module(nn.ReLU(), (torch.randn(2, 4),))


def test_a_lazy_module_is_refused() -> None:
    with pytest.raises(TraceError, match="weight of LazyLinear has no shape yet; give lazy modules their sizes"):
        trace_module(nn.LazyLinear(4), (torch.randn(2, 4),))


def test_a_missing_argument_asks_for_inputs() -> None:
    with pytest.raises(TraceError, match="describe every tensor that forward needs under `inputs`"):
        trace_module(nn.Linear(4, 4))


def patched_state() -> dict[str, Any]:
    """Everything a trace changes for its duration."""
    hooks = torch.nn.modules.module
    masking: Any = sys.modules.get("transformers.masking_utils")
    return {
        "functional": dict(vars(nn.functional)),
        "masking": dict(vars(masking)) if masking else {},
        "pre_hooks": len(hooks._global_forward_pre_hooks),
        "hooks": len(hooks._global_forward_hooks),
        "dispatch_modes": len(_get_current_dispatch_mode_stack()),
        "function_modes": torch._C._len_torch_function_stack(),
        "saved_tensor_hooks": torch._C._autograd._top_saved_tensors_default_hooks(True),
        "grad": torch.is_grad_enabled(),
        "default_device": torch.get_default_device(),
        "sys_path": list(sys.path),
    }


@pytest.mark.parametrize("name", [*FAILURES, "interrupt", "success"])
def test_nothing_stays_patched(name: str) -> None:
    functions = {"interrupt": _interrupt, "success": lambda linear, x: linear(x)}
    function = functions[name] if name in functions else FAILURES[name][0]
    module = Failing(function)
    before = patched_state()

    with suppress(PlannerError, KeyboardInterrupt):
        trace_module(module, (torch.randn(2, 4),))

    assert before == patched_state()
    assert all(parameter.grad is None for parameter in module.parameters())


def test_a_failing_factory_leaves_no_path_behind(write: Callable[..., Path]) -> None:
    before = patched_state()

    with pytest.raises(SpecError):
        trace_spec(specs.load(write("model: {factory: 'nowhere:build'}\nbatch: {micro_batch: 1}\n")))

    assert before == patched_state()


# -- sizes
# --------------------------------------------------------------------------------------------------------


def test_a_live_module_is_traced_without_copying_its_weights() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))

    graph: OpGraph = trace_module(module, (torch.randn(2, 4),))

    assert 40 == step_info(graph).parameters


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["llama-3-8b", "mixtral-8x7b", "vit-l", "resnet-50", "llama-3-405b"])
def test_presets_are_traced_at_full_size(preset: str) -> None:
    length = {} if preset in ("vit-l", "resnet-50") else {"sequence_length": 8192}
    spec = specs.from_mapping(
        {
            "model": {"preset": preset},
            "batch": {"micro_batch": 1, **length},
            "precision": {"parameters": "bfloat16"},
        }
    )

    graph = trace_spec(spec)

    assert len(saved_tensors(graph)) > 100
