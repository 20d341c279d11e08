"""From a spec to a module on the meta device and the tensors it is called with: no weights, no GPU, no
downloads.
"""

import difflib
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from planner.errors import MissingExtraError, PlannerError, SpecError, TraceError
from planner.spec import AttentionKernel, ModelKind, RunSpec
from planner.validation import did_you_mean
from planner.yaml_source import KeyPath, SourcedDocument, dotted

META = torch.device("meta")
# Length of the frames axis Whisper-like encoders are built for: two mel frames per source position.
_FRAMES_PER_SOURCE_POSITION = 2
# Architectures whose positions are rows of a table, so that a longer sequence cannot run.
_POSITION_TABLES = frozenset({"gpt2", "bert", "roberta", "distilbert", "opt", "gpt_neo"})
# Parts of class names of models that give one output per token.
_PER_TOKEN = ("CausalLM", "LMHead", "MaskedLM", "ConditionalGeneration", "TokenClass", "PreTraining")


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltModel:
    """A module to trace or to run.

    Attributes:
        module: in training mode.
        attention: the kernel to show: the spec's, or eager for an architecture that has no other form.
        notes: choices that the spec left open, for the reader.
    """

    module: torch.nn.Module
    attention: AttentionKernel
    notes: tuple[str, ...]


def build_model(spec: RunSpec, device: torch.device = META) -> BuiltModel:
    """The spec's module on a device (by default meta: no memory), in training mode.

    Raises:
        SpecError: the class, the factory or its configuration is at fault.
        MissingExtraError: transformers is needed and absent.
    """
    with torch.device(device):
        built = (
            _build_transformers(spec)
            if spec.model.kind is ModelKind.TRANSFORMERS
            else BuiltModel(module=_build_factory(spec), attention=spec.attention, notes=())
        )
    try:
        check_parameters(built.module, spec.model.name)
    except TraceError as error:
        raise _error(spec, error.message, model_key(spec), hint=error.hint) from None
    try:
        built.module.to(device).train()
    except Exception as error:
        raise _error(
            spec, f"{spec.model.name} cannot move to the {device} device: {brief(error)}", model_key(spec)
        ) from error
    return built


def check_parameters(module: torch.nn.Module, name: str) -> None:
    """Returns when the module has parameters and all of them have shapes.

    Raises:
        TraceError: it has nothing to train, or lazy modules that have not seen an input.
    """
    if not any(True for _ in module.parameters()):
        raise TraceError(f"{name} has no parameters, so there is nothing to train")
    for fqn, tensor in (*module.named_parameters(), *module.named_buffers()):
        if torch.nn.parameter.is_lazy(tensor):
            raise TraceError(f"{fqn} of {name} has no shape yet", hint="give lazy modules their sizes")


def import_object(reference: str, spec: RunSpec, key_path: KeyPath) -> Any:
    """The object that "package.module:name" refers to; modules beside the spec file can be imported too.

    Raises:
        SpecError: there is no such module or name, or importing it fails.
    """
    module_name, _, attribute = reference.partition(":")
    try:
        with _importable(Path(spec.path).parent):
            _forget_namesake(module_name, Path(spec.path).parent)
            module = importlib.import_module(module_name)
    except ImportError as error:
        raise _error(spec, f"cannot import {module_name}: {error}", key_path) from error
    except Exception as error:
        raise _error(spec, f"importing {module_name} failed: {brief(error)}", key_path) from error
    try:
        return attrgetter(attribute)(module)
    except AttributeError:
        own = (name for name, item in vars(module).items() if getattr(item, "__module__", None) == module_name)
        hint = did_you_mean(attribute, tuple(own), plural="it has")
        raise _error(spec, f"{module_name} has no attribute {attribute}", key_path, hint=hint) from None


def _forget_namesake(module_name: str, folder: Path) -> None:
    """Drop a module of the same name that another spec's folder supplied, so that this folder's is imported."""
    loaded = getattr(sys.modules.get(module_name), "__file__", None)
    own = folder.resolve() / f"{module_name}.py"
    if loaded is not None and own.is_file() and Path(loaded).resolve() != own:
        del sys.modules[module_name]


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    entry = str(folder.resolve())
    sys.path.insert(0, entry)
    try:
        yield
    finally:
        if entry in sys.path:
            sys.path.remove(entry)


def _build_transformers(spec: RunSpec) -> BuiltModel:
    cls = _model_class(spec)
    config, notes = _config(spec, cls)
    is_eager = spec.attention is AttentionKernel.EAGER
    config._attn_implementation = "eager" if is_eager else "sdpa"
    try:
        try:
            return BuiltModel(module=cls(config), attention=spec.attention, notes=tuple(notes))
        except (ValueError, ImportError) as error:
            if is_eager or "attention" not in str(error).lower():
                raise
            # The architecture has no fused form.
            config._attn_implementation = "eager"
            if hasattr(config, "num_attention_heads"):
                notes.append(
                    f"{spec.model.name} has no scaled_dot_product_attention form in transformers: eager "
                    "attention is traced, which saves scores of length × length for every head"
                )
            return BuiltModel(module=cls(config), attention=AttentionKernel.EAGER, notes=tuple(notes))
    except Exception as error:
        raise _config_error(spec, error) from error


def _model_class(spec: RunSpec) -> Any:
    try:
        import transformers
    except ImportError as error:
        raise MissingExtraError("a transformers model", "hf") from error
    name = spec.model.name
    cls: Any = getattr(transformers, name, None)
    if not inspect.isclass(cls) or not issubclass(cls, transformers.PreTrainedModel):
        raise _error(
            spec,
            f"transformers {transformers.__version__} has no model class {name}",
            ("model", "transformers"),
            hint=_class_hint(cls, name, transformers),
        )
    return cls


def _class_hint(found: Any, name: str, transformers: Any) -> str | None:
    if found is not None:
        return f"{name} is there, but is no PreTrainedModel"
    hint = did_you_mean(name, tuple(other for other in dir(transformers) if other[:1].isupper()), plural="")
    return hint if hint.startswith("did you mean") else None


def _config(spec: RunSpec, cls: Any) -> tuple[Any, list[str]]:
    """The transformers config, and what had to be assumed for it."""
    notes: list[str] = []
    try:
        config = cls.config_class(**dict(spec.model.config))
    except Exception as error:
        raise _config_error(spec, error) from error
    _check_config_keys(spec, config, notes)
    config.use_cache = False  # a cache for generation would hold every layer's keys and values
    if getattr(config, "is_encoder_decoder", False) and getattr(config, "decoder_start_token_id", None) is None:
        start = getattr(config, "pad_token_id", None) or 0
        config.decoder_start_token_id = start
        notes.append(f"the config has no decoder_start_token_id: {start} is assumed")
    return config, notes


def _check_config_keys(spec: RunSpec, config: Any, notes: list[str]) -> None:
    """Refuse misspelt keys: the library stores any key, so a wrong one would build another model."""
    name = type(config).__name__
    known = set(dir(type(config)())) | set(inspect.signature(type(config)).parameters)
    for key in spec.model.config:
        if key in known or key not in vars(config):  # what it understands under an older name is not stored
            continue
        close = difflib.get_close_matches(key, [other for other in known if not other.startswith("_")], n=1, cutoff=0.8)
        if close:
            hint = f"did you mean {close[0]!r}?"
            raise _error(spec, f"{name} has no key {key}", ("model", "config", key), hint=hint)
        notes.append(f"{name} has no key {key}, which is ignored")


def _config_error(spec: RunSpec, error: BaseException) -> SpecError:
    """An error that points at the config key the message speaks of, if it names one."""
    text = str(error)
    named = next((key for key in spec.model.config if f"'{key}'" in text or f"`{key}`" in text), None)
    key_path: KeyPath = ("model", "config", named) if named else model_key(spec)
    return _error(spec, f"{spec.model.name} cannot be built from this config: {brief(error)}", key_path)


def _build_factory(spec: RunSpec) -> torch.nn.Module:
    factory = import_object(spec.model.name, spec, ("model", "factory"))
    try:
        module = factory(**dict(spec.model.arguments))
    except PlannerError:
        raise
    except Exception as error:
        raise _error(spec, f"{spec.model.name} raised {brief(error)}", ("model", "factory")) from error
    if not isinstance(module, torch.nn.Module):
        raise _error(
            spec,
            f"{spec.model.name} returned {_kind(module)}, expected a torch.nn.Module",
            ("model", "factory"),
        )
    return module


def model_key(spec: RunSpec) -> KeyPath:
    """The key that chose the model."""
    if spec.model.preset is not None:
        return ("model", "preset")
    return ("model", str(spec.model.kind))


def build_inputs(spec: RunSpec, module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The keyword arguments of the module's forward, on the meta device, labels included where the model
    takes them.

    Raises:
        SpecError: the spec does not say enough to make them.
    """
    inputs = {item.name: _tensor(item.shape, item.dtype) for item in spec.inputs}
    _check_arguments(spec, module)
    if not inputs:
        inputs = _default_inputs(spec, module)
    if spec.loss is None and spec.model.kind is ModelKind.TRANSFORMERS:
        labels = _labels(spec, module, inputs)
        if labels is not None:
            inputs.setdefault("labels", labels)
    return inputs


def _check_arguments(spec: RunSpec, module: torch.nn.Module) -> None:
    """Refuse inputs that forward does not take, where its signature says so."""
    try:
        parameters = inspect.signature(module.forward).parameters
    except (TypeError, ValueError):  # compiled code may have none
        return
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    for item in spec.inputs:
        if item.name not in parameters:
            hint = did_you_mean(item.name, tuple(parameters), plural="it takes")
            raise _error(spec, f"forward of {spec.model.name} has no such argument", ("inputs", item.name), hint=hint)


def _default_inputs(spec: RunSpec, module: torch.nn.Module) -> dict[str, torch.Tensor]:
    batch, length = spec.batch.micro_batch, spec.batch.sequence_length
    name = getattr(module, "main_input_name", None)
    config = getattr(module, "config", None)
    if name is None or config is None:
        raise _error(spec, "cannot tell what a factory's forward takes", ("batch",), hint="describe it under `inputs`")
    if name == "input_ids":
        if length is None:
            raise _error(
                spec,
                f"{spec.model.name} reads tokens, so it needs sequence_length",
                ("batch", "sequence_length"),
            )
        _check_positions(spec, config, length)
        return {name: _tensor((batch, length), "int64")}
    try:
        return {name: _tensor((batch, *_sample_shape(name, config)), "float32")}
    except (AttributeError, TypeError, ValueError):  # the config is in parts, or speaks of other things
        hint = "give its shape under `inputs`"
        raise _error(spec, f"{spec.model.name} takes {name}", ("batch",), hint=hint) from None


def _sample_shape(name: str, config: Any) -> tuple[int, ...]:
    """The shape of one picture or one recording, from the config's own sizes."""
    if name == "pixel_values":
        size = config.image_size if hasattr(config, "image_size") else 224
        height, width = size if isinstance(size, tuple | list) else (size, size)
        return config.num_channels, height, width
    if name == "input_features":
        return config.num_mel_bins, config.max_source_positions * _FRAMES_PER_SOURCE_POSITION
    raise ValueError(name)


def _check_positions(spec: RunSpec, config: Any, length: int) -> None:
    limit = getattr(config, "max_position_embeddings", None)
    has_table = getattr(config, "model_type", "") in _POSITION_TABLES
    if has_table and limit is not None and length > limit:
        raise _error(
            spec,
            f"{length} is more than the {limit} positions of {spec.model.name}",
            ("batch", "sequence_length"),
            hint="raise max_position_embeddings in model.config or shorten the sequence",
        )


def _labels(spec: RunSpec, module: torch.nn.Module, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor | None:
    """Integer labels if forward takes them: one per token for language models, one per sample otherwise."""
    if "labels" not in inspect.signature(module.forward).parameters:
        return None
    first = next((item for item in inputs.values() if item.dim()), torch.empty(1, device=META))
    batch = first.shape[0]
    is_per_token = any(part in spec.model.name for part in _PER_TOKEN)
    if not is_per_token:
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
        return _chosen_loss(spec, spec.loss)
    wants_own = spec.loss is None
    return lambda output, inputs: default_loss(output, own=wants_own)


def _chosen_loss(spec: RunSpec, name: str) -> Callable[[Any, Mapping[str, torch.Tensor]], torch.Tensor]:
    chosen = import_object(name, spec, ("loss",))

    def loss(output: Any, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        try:
            return chosen(output, inputs)  # type: ignore[no-any-return]  # checked where it is used
        except Exception as error:
            raise _error(spec, f"{name} raised {brief(error)}", ("loss",)) from error

    return loss


def default_loss(output: Any, *, own: bool = True) -> torch.Tensor:
    """The model's own loss if it has one and `own` is set, else the mean of its first floating-point output.

    Raises:
        TraceError: the output holds no differentiable tensor.
    """
    if own:
        loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
        if isinstance(loss, torch.Tensor):
            return loss
    for leaf in tree_leaves(dict(output) if isinstance(output, Mapping) else output):
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() and leaf.requires_grad:
            return leaf if leaf.dim() == 0 else leaf.float().mean()
    raise TraceError(
        f"forward returned {_kind(output)} without a floating-point tensor that requires a gradient",
        hint="name a function under `loss` that returns a scalar, or train some parameter",
    )


def _tensor(shape: tuple[int, ...], dtype: str) -> torch.Tensor:
    return torch.empty(shape, dtype=getattr(torch, dtype), device=META)


def _error(spec: RunSpec, message: str, key_path: KeyPath, *, hint: str | None = None) -> SpecError:
    """An error that points at the key, or at the nearest key around it that stands in the file."""
    position = SourcedDocument(data=None, lines=spec.lines, path=spec.path).position(key_path)
    return SpecError(
        message,
        path=spec.path,
        line=position.line if position else None,
        column=position.column if position else None,
        key=dotted(key_path),
        hint=hint,
    )


def located(error: TraceError, spec: RunSpec) -> TraceError:
    """The same error with the place in the spec that chose the model."""
    place = _error(spec, "", model_key(spec))
    line = "" if place.line is None else f":{place.line}"
    return TraceError(
        error.message, module_fqn=error.module_fqn, hint=error.hint, source=f"{place.path}{line}: {place.key}"
    )


def brief(error: BaseException) -> str:
    """The error in one line, with its second line if the first only introduces it."""
    try:
        text = str(error)
    except Exception:  # an error of the model's own, with a mistake of its own
        text = ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    return f"{type(error).__name__}: " + " ".join(lines[: 2 if lines[0].endswith(":") else 1])


def _kind(value: Any) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"
