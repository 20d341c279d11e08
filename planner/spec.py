"""The model spec: which model, on what inputs, trained how. It is where every plan begins.

A spec is a YAML file (``schemas/model.schema.json`` describes it) or a mapping of the same shape; both pass
the same checks and become a `RunSpec`. Only ``model``, and one of ``batch`` and ``inputs``, are required.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from planner.device import DEFAULT_DEVICE, load_device
from planner.errors import SpecError, UnitError
from planner.presets import load_preset, preset_names
from planner.units import parse_dtype
from planner.validation import check, did_you_mean, found
from planner.yaml_source import KeyPath, SourcedDocument, SourcePosition, load_json, load_yaml

MAX_INPUT_ELEMENTS = 10**12
MAX_SIZE = 10**9  # of an axis, as the schema has it
_TOO_MANY_ELEMENTS = f"expected at most {MAX_INPUT_ELEMENTS:,} elements in all"
_AUTOCAST_DTYPES = ("bfloat16", "float16")
_TRAINING_DTYPES = ("float32", *_AUTOCAST_DTYPES, "float64")


class ModelKind(StrEnum):
    """How the model is made."""

    TRANSFORMERS = "transformers"
    FACTORY = "factory"


class OptimizerName(StrEnum):
    """The optimizers whose state the planner can count."""

    ADAMW = "adamw"
    ADAM = "adam"
    SGD = "sgd"
    ADAMW_8BIT = "adamw-8bit"
    ADAFACTOR = "adafactor"
    LION = "lion"
    NONE = "none"


class AttentionKernel(StrEnum):
    """The kernel behind scaled dot-product attention."""

    FLASH = "flash"
    EFFICIENT = "efficient"
    CUDNN = "cudnn"
    EAGER = "eager"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """The model.

    Attributes:
        kind: How it is made.
        name: A transformers class name, or "package.module:function" for a factory.
        config: Keys of the transformers config; empty for a factory.
        arguments: Keyword arguments of the factory; empty for a transformers model.
        preset: The preset from which name and config came, if any.
    """

    kind: ModelKind
    name: str
    config: Mapping[str, Any]
    arguments: Mapping[str, Any]
    preset: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSpec:
    """How much one device works on at a time; ``sequence_length`` is None for models without one."""

    micro_batch: int
    sequence_length: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSpec:
    """One tensor that forward receives.

    Attributes:
        name: The argument of forward.
        shape: Sizes, outermost first; empty for a scalar.
        dtype: A torch dtype name such as "float32".
        max_value: For integers: values are at least 0 and below this. None when it does not matter.
        fill_value: The one value that fills the tensor, or None.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    max_value: int | None
    fill_value: int | float | bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionSpec:
    """Torch dtype names: what parameters are stored in, and what the step computes in.

    The step runs under autocast when the two differ.
    """

    parameters: str
    compute: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSpec:
    """The optimizer; ``momentum`` is 0 except for SGD with momentum."""

    name: OptimizerName
    momentum: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelSpec:
    """Over how many devices parameters, gradients and optimizer state are sharded, or the whole model replicated."""

    fsdp: int
    ddp: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """One training step to plan.

    Attributes:
        path: The file as the user named it, or "<memory>".
        model: The model.
        batch: The batch; for a spec with only ``inputs``, the leading size of the first input.
        inputs: The tensors for forward, in the order of the file; empty when they follow from model and
            batch.
        precision: Storage and compute dtypes.
        optimizer: The optimizer.
        attention: The attention kernel of the real step.
        loss: "mean", "package.module:function", or None for the model's own loss.
        parallel: Sharding.
        device: A profile name, the path of a profile file relative to the spec, or a mapping; see
            `load_device`.
        lines: Where each key stands in the file; empty for a mapping. No part of what the run is: two specs
            that differ only here are equal.
    """

    path: str
    model: ModelSpec
    batch: BatchSpec
    inputs: tuple[InputSpec, ...]
    precision: PrecisionSpec
    optimizer: OptimizerSpec
    attention: AttentionKernel
    loss: str | None
    parallel: ParallelSpec
    device: str | Mapping[str, Any]
    lines: Mapping[KeyPath, SourcePosition] = field(default_factory=dict, compare=False, repr=False)


def load(path: str | Path) -> RunSpec:
    """The run that a spec file describes.

    Raises:
        SpecError: The file, or a file it names, cannot be read or does not fit; it points at the line.
        DeviceError: The same for the device it names.
    """
    return _build(load_yaml(path), directory=Path(path).parent)


def load_model(path: str | Path) -> RunSpec:
    """The run that a spec file describes, which may leave out the batch: for those who look at the model only.

    Raises:
        SpecError: as `load`.
        DeviceError: as `load`.
    """
    document = load_yaml(path)
    if isinstance(document.data, dict) and not {"batch", "inputs"} & document.data.keys():
        document = replace(document, data={**document.data, "batch": {"micro_batch": 1}})
    return _build(document, directory=Path(path).parent)


def from_mapping(mapping: Mapping[str, Any], path: str = "<memory>") -> RunSpec:
    """The run that a mapping describes, of the shape that a spec file has.

    Args:
        mapping: What the YAML would hold. Relative paths inside start at the working directory.
        path: How errors name it.

    Raises:
        SpecError: It does not fit.
        DeviceError: The device does not exist or does not fit.
    """
    return _build(SourcedDocument(data=_plain(mapping), lines={}, path=path), directory=Path())


def batched_inputs(spec: RunSpec) -> tuple[str, ...]:
    """The names of those `inputs` whose first axis is as long as the micro-batch, and so taken to hold the samples."""
    return tuple(item.name for item in spec.inputs if item.shape[:1] == (spec.batch.micro_batch,))


def with_micro_batch(spec: RunSpec, micro_batch: int) -> RunSpec:
    """The same run with another number of samples per device; the spec itself if it has that number.

    Of `inputs`, those that `batched_inputs` names follow: PyTorch's own modules have samples on the first axis.

    Args:
        spec: the run.
        micro_batch: samples, at least 1.

    Raises:
        SpecError: no input's first axis is as long as the micro-batch, so nothing would change; or an input would have
            more elements than a spec may give it.
    """
    if micro_batch == spec.batch.micro_batch:
        return spec
    batched = batched_inputs(spec)
    if spec.inputs and not batched:
        raise _inputs_error(
            spec,
            f"no input has the micro-batch of {spec.batch.micro_batch} as its first axis",
            hint="give them their samples there",
        )
    inputs = tuple(
        replace(item, shape=(micro_batch, *item.shape[1:])) if item.name in batched else item for item in spec.inputs
    )
    for item in inputs:
        if math.prod(item.shape) > MAX_INPUT_ELEMENTS:
            message = f"with a micro-batch of {micro_batch}, {item.name}: {_TOO_MANY_ELEMENTS}"
            raise _inputs_error(spec, message, hint="use a smaller one")
    return replace(spec, batch=replace(spec.batch, micro_batch=micro_batch), inputs=inputs)


def _inputs_error(spec: RunSpec, message: str, *, hint: str) -> SpecError:
    position = spec.lines.get(("inputs",))
    return SpecError(message, path=spec.path, line=position.line if position else None, key="inputs", hint=hint)


def _plain(value: object) -> object:
    """A deep copy in which mappings are dicts and sequences are lists, as a file would give them."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value.value if isinstance(value, StrEnum) else value


def _build(document: SourcedDocument, *, directory: Path) -> RunSpec:
    check(document, "model")
    data: dict[str, Any] = document.data  # type: ignore[assignment]  # the schema says so
    inputs = tuple(_input(document, name, entry) for name, entry in data.get("inputs", {}).items())
    parallel = _parallel(document, data.get("parallel", {}))
    device = data.get("device", DEFAULT_DEVICE)
    load_device(device, source=document, directory=directory)  # a wrong device is best reported with its line
    return RunSpec(
        path=document.path,
        model=_model(document, data["model"], directory),
        batch=_batch(data.get("batch"), inputs),
        inputs=inputs,
        precision=_precision(document, data.get("precision", {}), parallel),
        optimizer=_optimizer(document, data.get("optimizer", {"name": "adamw"})),
        attention=AttentionKernel(data.get("attention", "flash")),
        loss=data.get("loss"),
        parallel=parallel,
        device=device,
        lines=document.lines,
    )


# Which other keys each way of naming a model can use.
_MODEL_KEYS = {
    "transformers": ("config", "config_file"),
    "preset": ("config",),
    "factory": ("arguments",),
}


def _model(document: SourcedDocument, data: dict[str, Any], directory: Path) -> ModelSpec:
    given = next(key for key in _MODEL_KEYS if key in data)
    for key in data:
        if key != given and key not in _MODEL_KEYS[given]:
            hint = f"with {given}, use {' or '.join(_MODEL_KEYS[given])}"
            raise document.error(f"has no meaning beside model.{given}", ("model", key), hint=hint)
    config = data.get("config", {})
    if given == "factory":
        return ModelSpec(
            kind=ModelKind.FACTORY,
            name=data["factory"],
            config={},
            arguments=data.get("arguments", {}),
            preset=None,
        )
    if given == "preset":
        return _preset_model(document, data["preset"], config)
    if "config_file" in data:
        config = {**_config_file(document, directory / data["config_file"]), **config}
    return ModelSpec(kind=ModelKind.TRANSFORMERS, name=data["transformers"], config=config, arguments={}, preset=None)


def _preset_model(document: SourcedDocument, name: str, overrides: Mapping[str, Any]) -> ModelSpec:
    if name not in preset_names():
        hint = did_you_mean(name, preset_names(), plural="known presets")
        raise document.error(f"unknown preset {name!r}", ("model", "preset"), hint=hint)
    preset = load_preset(name)
    return ModelSpec(
        kind=ModelKind.TRANSFORMERS,
        name=preset.transformers,
        config={**preset.config, **overrides},
        arguments={},
        preset=name,
    )


def _config_file(document: SourcedDocument, path: Path) -> Mapping[str, Any]:
    try:
        config = (load_json if path.suffix == ".json" else load_yaml)(path)
    except SpecError as error:
        raise document.error(str(error), ("model", "config_file")) from None
    if not isinstance(config.data, dict):
        message = f"{path}: expected a mapping of config keys, found {found(config.data)}"
        raise document.error(message, ("model", "config_file"))
    return config.data


def _batch(data: Mapping[str, Any] | None, inputs: tuple[InputSpec, ...]) -> BatchSpec:
    if data is not None:
        return BatchSpec(micro_batch=data["micro_batch"], sequence_length=data.get("sequence_length"))
    leading_sizes = inputs[0].shape[:1]
    return BatchSpec(micro_batch=leading_sizes[0] if leading_sizes else 1, sequence_length=None)


def _input(document: SourcedDocument, name: str, data: Mapping[str, Any]) -> InputSpec:
    key: KeyPath = ("inputs", name)
    dtype = _dtype(document, (*key, "dtype"), data["dtype"])
    max_value, fill_value = data.get("max"), data.get("value")
    if math.prod(data["shape"]) > MAX_INPUT_ELEMENTS:
        raise document.error(_TOO_MANY_ELEMENTS, (*key, "shape"))
    if max_value is not None and "int" not in dtype:
        raise document.error(f"only integers have a max, and the dtype is {dtype}", (*key, "max"))
    if fill_value is not None and max_value is not None:
        raise document.error("a tensor filled with one value has no max", (*key, "max"), hint="leave one of them out")
    if isinstance(fill_value, float) and "float" not in dtype:
        raise document.error(f"expected a value that {dtype} can hold, found {fill_value}", (*key, "value"))
    return InputSpec(name=name, shape=tuple(data["shape"]), dtype=dtype, max_value=max_value, fill_value=fill_value)


def _parallel(document: SourcedDocument, data: Mapping[str, Any]) -> ParallelSpec:
    parallel = ParallelSpec(fsdp=data.get("fsdp", 1), ddp=data.get("ddp", 1))
    if parallel.fsdp > 1 and parallel.ddp > 1:
        hint = "leave one of them out; replicas of a sharded model need the memory of parallel.fsdp alone"
        raise document.error("cannot be combined with parallel.fsdp", ("parallel", "ddp"), hint=hint)
    return parallel


def _precision(document: SourcedDocument, data: Mapping[str, Any], parallel: ParallelSpec) -> PrecisionSpec:
    names = {key: _dtype(document, ("precision", key), text) for key, text in data.items()}
    for key, name in names.items():
        if name not in _TRAINING_DTYPES:
            message = f"expected one of {', '.join(_TRAINING_DTYPES)}, found {name}"
            raise document.error(message, ("precision", key))
    parameters = names.get("parameters", "float32")
    compute = names.get("compute", parameters)
    if compute != parameters and compute not in _AUTOCAST_DTYPES and parallel.fsdp == 1:
        message = f"autocast computes in {' or '.join(_AUTOCAST_DTYPES)}, found {compute}"
        raise document.error(message, ("precision", "compute"), hint=f"or leave it out, to compute in {parameters}")
    return PrecisionSpec(parameters=parameters, compute=compute)


def _optimizer(document: SourcedDocument, data: Mapping[str, Any]) -> OptimizerSpec:
    name = OptimizerName(data["name"])
    if "momentum" in data and name is not OptimizerName.SGD:
        raise document.error(f"only sgd has momentum, and the optimizer is {name}", ("optimizer", "momentum"))
    return OptimizerSpec(name=name, momentum=float(data.get("momentum", 0.0)))


def _dtype(document: SourcedDocument, key_path: KeyPath, text: str) -> str:
    try:
        return parse_dtype(text)
    except UnitError as error:
        raise document.error(str(error), key_path) from None
