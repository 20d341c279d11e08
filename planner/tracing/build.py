"""From a spec to a module on the meta device and the tensors it is called with: no weights, no GPU, no downloads."""

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from planner.errors import MissingExtraError, PlannerError, SpecError, TraceError
from planner.spec import InputSpec, ModelKind, RunSpec

META = torch.device("meta")
# Length of the frames axis Whisper-like encoders are built for: two mel frames per source position.
_FRAMES_PER_SOURCE_POSITION = 2


def build_module(spec: RunSpec) -> torch.nn.Module:
    """The spec's module on the meta device, in training mode.

    Raises:
        SpecError: the class, the factory or its configuration is at fault.
        MissingExtraError: transformers is needed and absent.
    """
    with torch.device(META):
        if spec.model.kind is ModelKind.TRANSFORMERS:
            module = _build_transformers(spec)
        else:
            module = _build_factory(spec)
    if not isinstance(module, torch.nn.Module):
        raise _at_model(spec, f"{spec.model.name} returned {type(module).__name__}, expected a torch.nn.Module")
    return module.to(META).train()


def import_object(reference: str, spec: RunSpec, key: str) -> Any:
    """The object that "package.module:name" refers to; modules beside the spec file can be imported too."""
    module_name, _, attribute = reference.partition(":")
    with _importable(Path(spec.path).parent):
        try:
            return getattr(importlib.import_module(module_name), attribute)
        except ImportError as error:
            raise _at(spec, key, f"cannot import {module_name}: {error}") from error
        except AttributeError as error:
            raise _at(spec, key, f"{module_name} has no attribute {attribute}") from error
        except Exception as error:
            raise _at(spec, key, f"importing {module_name} failed: {_brief(error)}") from error


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    sys.path.insert(0, str(folder.resolve()))
    try:
        yield
    finally:
        sys.path.remove(str(folder.resolve()))


def _build_transformers(spec: RunSpec) -> Any:
    try:
        import transformers
    except ImportError as error:
        raise MissingExtraError("a transformers model", "hf") from error
    cls = getattr(transformers, spec.model.name, None)
    if cls is None or not inspect.isclass(cls) or not issubclass(cls, transformers.PreTrainedModel):
        raise _at(spec, "model.transformers", f"transformers {transformers.__version__} has no model class {spec.model.name}")
    try:
        config = cls.config_class(**dict(spec.model.config))
        config.use_cache = False  # a cache for generation would hold every layer's keys and values
        config._attn_implementation = "eager" if spec.attention == "eager" else "sdpa"
        try:
            return cls(config)
        except (ValueError, ImportError):
            if config._attn_implementation == "eager":
                raise
            config._attn_implementation = "eager"  # the architecture has no fused form
            return cls(config)
    except Exception as error:
        raise _at_model(spec, f"{spec.model.name} cannot be built from this config: {_brief(error)}") from error


def _build_factory(spec: RunSpec) -> Any:
    factory = import_object(spec.model.name, spec, "model.factory")
    try:
        return factory(**dict(spec.model.arguments))
    except PlannerError:
        raise
    except Exception as error:
        raise _at_model(spec, f"{spec.model.name} raised {_brief(error)}") from error


def build_inputs(spec: RunSpec, module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The keyword arguments of the module's forward, on the meta device, labels included where the model takes them.

    Raises:
        SpecError: the spec does not say enough to make them.
    """
    inputs = {item.name: _tensor(item.shape, item.dtype) for item in spec.inputs}
    if not inputs:
        inputs = _default_inputs(spec, module)
    if spec.loss is None and spec.model.kind is ModelKind.TRANSFORMERS:
        labels = _labels(spec, module, inputs)
        if labels is not None:
            inputs.setdefault("labels", labels)
    return inputs


def _default_inputs(spec: RunSpec, module: torch.nn.Module) -> dict[str, torch.Tensor]:
    batch, length = spec.batch.micro_batch, spec.batch.sequence_length
    name = getattr(module, "main_input_name", None)
    config = getattr(module, "config", None)
    if name is None or config is None:
        raise _at(spec, "batch", "cannot tell what a factory's forward takes; describe it under `inputs`")
    if name == "input_ids":
        if length is None:
            raise _at(spec, "batch.sequence_length", f"{spec.model.name} reads tokens: sequence_length is required")
        _check_positions(spec, config, length)
        return {name: _tensor((batch, length), "int64")}
    if name == "pixel_values":
        size = config.image_size if hasattr(config, "image_size") else 224
        height, width = size if isinstance(size, tuple | list) else (size, size)
        return {name: _tensor((batch, config.num_channels, height, width), "float32")}
    if name == "input_features":
        frames = config.max_source_positions * _FRAMES_PER_SOURCE_POSITION
        return {name: _tensor((batch, config.num_mel_bins, frames), "float32")}
    raise _at(spec, "batch", f"{spec.model.name} takes {name}; give its shape under `inputs`")


def _check_positions(spec: RunSpec, config: Any, length: int) -> None:
    limit = getattr(config, "max_position_embeddings", None)
    has_table = getattr(config, "model_type", "") in ("gpt2", "bert", "roberta", "distilbert", "opt", "gpt_neo")
    if has_table and limit is not None and length > limit:
        raise _at(
            spec,
            "batch.sequence_length",
            f"{length} is more than the {limit} positions of {spec.model.name}; raise max_position_embeddings "
            "in model.config or shorten the sequence",
        )


def _labels(
    spec: RunSpec, module: torch.nn.Module, inputs: Mapping[str, torch.Tensor]
) -> torch.Tensor | None:
    """Integer labels if forward takes them: one per token for language models, one per sample otherwise."""
    if "labels" not in inspect.signature(module.forward).parameters:
        return None
    first = next(iter(inputs.values()))
    batch = first.shape[0]
    is_text_out = any(
        part in spec.model.name for part in ("CausalLM", "LMHead", "MaskedLM", "ConditionalGeneration", "TokenClass", "PreTraining")
    )
    if not is_text_out:
        return _tensor((batch,), "int64")
    if spec.batch.sequence_length is not None:
        return _tensor((batch, spec.batch.sequence_length), "int64")
    if first.dim() == 2 and not first.is_floating_point():
        return _tensor(tuple(first.shape), "int64")
    config: Any = getattr(module, "config", None)
    return _tensor((batch, getattr(config, "max_target_positions", 1)), "int64")


def loss_function(spec: RunSpec) -> Callable[[Any, Mapping[str, torch.Tensor]], torch.Tensor]:
    """A function from forward's output and the inputs to a scalar loss, as the spec chooses it."""
    if spec.loss is not None and spec.loss != "mean":
        chosen = import_object(spec.loss, spec, "loss")
        return lambda output, inputs: chosen(output, inputs)
    wants_own = spec.loss is None
    return lambda output, inputs: default_loss(output, own=wants_own)


def default_loss(output: Any, *, own: bool = True) -> torch.Tensor:
    """The model's own loss if it has one and `own` is set, else the mean of its first floating-point output.

    Raises:
        TraceError: the output holds no differentiable tensor.
    """
    if own:
        loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
        if isinstance(loss, torch.Tensor):
            return loss
    for leaf in torch.utils._pytree.tree_leaves(dict(output) if isinstance(output, Mapping) else output):
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() and leaf.requires_grad:
            return leaf if leaf.dim() == 0 else leaf.float().mean()
    raise TraceError("forward returned no floating-point tensor that requires a gradient; give `loss`")


def _tensor(shape: tuple[int, ...], dtype: str) -> torch.Tensor:
    return torch.empty(shape, dtype=getattr(torch, dtype), device=META)


def _brief(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def _at(spec: RunSpec, key: str, message: str) -> SpecError:
    line, column = spec.lines.get(tuple(key.split(".")), (None, None))
    return SpecError(message, path=spec.path, key=key, line=line, column=column)


def _at_model(spec: RunSpec, message: str) -> SpecError:
    return _at(spec, "model", message)
