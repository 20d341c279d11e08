"""The model spec: which model, on what inputs, trained how. It is where every plan begins.

A spec is a YAML file (``schemas/model.schema.json`` describes it) or a mapping of the same shape; both pass
the same checks and become a `RunSpec`. Only ``model``, and one of ``batch`` and ``inputs``, are required.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, cast

from planner.device import DEFAULT_DEVICE, device_names, load_device
from planner.errors import SpecError, UnitError
from planner.presets import load_preset, preset_names
from planner.units import parse_dtype
from planner.validation import check, did_you_mean, found
from planner.yaml_source import KeyPath, SourcedDocument, SourcePosition, load_json, load_yaml, parse_yaml

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
    ADAM_8BIT = "adam-8bit"
    PAGED_ADAMW = "paged-adamw"
    PAGED_ADAMW_8BIT = "paged-adamw-8bit"
    ADAFACTOR = "adafactor"
    LION = "lion"
    MUON = "muon"
    NONE = "none"


class AttentionKernel(StrEnum):
    """The kernel behind scaled dot-product attention."""

    FLASH = "flash"
    EFFICIENT = "efficient"
    CUDNN = "cudnn"
    EAGER = "eager"


class CheckpointingMode(StrEnum):
    """What a block keeps for backward: everything, its input, or that and the results of matrix products."""

    NONE = "none"
    BLOCK = "block"
    SELECTIVE = "selective"


class LossKernel(StrEnum):
    """How cross entropy is computed from the last hidden states."""

    FULL = "full"
    CHUNKED = "chunked"
    FUSED = "fused"
    FUSED_LINEAR = "fused-linear"


class OptimizerImplementation(StrEnum):
    """How the optimizer's step runs."""

    FOREACH = "foreach"
    FUSED = "fused"
    FOR_LOOP = "for-loop"


class QuantizationName(StrEnum):
    """How frozen weights are held."""

    NF4 = "nf4"
    NF4_DOUBLE = "nf4-double"
    INT8 = "int8"


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
    """The optimizer.

    Attributes:
        name: Which.
        momentum: 0 except for SGD with momentum.
        implementation: How its step runs.
        in_backward: Each parameter is updated as soon as its gradient is there.
        master_weights: Dtype of a copy of the parameters that it updates; None for none.
        state_dtype: Of its states; None for that of what it updates.
    """

    name: OptimizerName
    momentum: float
    implementation: OptimizerImplementation = OptimizerImplementation.FOREACH
    in_backward: bool = False
    master_weights: str | None = None
    state_dtype: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelSpec:
    """Over how many devices things are divided; 1 for not.

    Attributes:
        fsdp: Shards of parameters, gradients and optimizer state.
        ddp: Replicas of the whole model; follows from `world_size` where only that is given.
        zero: The stage of ZeRO among the replicas; 0 for none.
        tp: Ranks that share each matrix; with `sp` norms and residuals, too.
        sp: See `tp`.
        cp: Ranks that share each sequence.
        pp: Pipeline stages, each of `virtual_pp` chunks of layers.
        virtual_pp: See `pp`.
        stage_layers: Layers of each chunk, in the model's order; empty where all have as many.
        ep: Ranks, among the others, that share each layer's experts.
        micro_batches: In a pipeline's step; None for as many as there are stages.
        world_size: All ranks, if the spec says so.
    """

    fsdp: int
    ddp: int = 1
    zero: int = 0
    tp: int = 1
    sp: bool = False
    cp: int = 1
    pp: int = 1
    virtual_pp: int = 1
    stage_layers: tuple[int, ...] = ()
    ep: int = 1
    micro_batches: int | None = None
    world_size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointingSpec:
    """What blocks keep, and how many of them make one checkpoint."""

    mode: CheckpointingMode = CheckpointingMode.NONE
    every: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraSpec:
    """Adapters beside frozen linear layers.

    Attributes:
        rank: Of each.
        targets: The linear layers that have them; empty for all in the blocks.
        dropout: Before them.
        dtype: They are held in.
        quantization: Of the frozen weights, or None.
    """

    rank: int
    targets: tuple[str, ...] = ()
    dropout: float = 0.0
    dtype: str = "float32"
    quantization: QuantizationName | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadSpec:
    """What waits in the host's memory: checkpoints' inputs, optimizer state, parameters."""

    activations: bool = False
    optimizer: bool = False
    parameters: bool = False


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
        checkpointing: What blocks keep for backward; the commands that trace decide it themselves.
        lora: Adapters, or None to train all parameters.
        loss_kernel: How cross entropy is computed.
        gradient_accumulation: Micro-batches in an optimizer step.
        offload: What waits in the host's memory.
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
    checkpointing: CheckpointingSpec = field(default_factory=CheckpointingSpec)
    lora: LoraSpec | None = None
    loss_kernel: LossKernel = LossKernel.FULL
    gradient_accumulation: int = 1
    offload: OffloadSpec = field(default_factory=OffloadSpec)
    lines: Mapping[KeyPath, SourcePosition] = field(default_factory=dict, compare=False, repr=False)


def load(path: str | Path) -> RunSpec:
    """The run that a spec file describes.

    Raises:
        SpecError: The file, or a file it names, cannot be read or does not fit; it points at the line.
        DeviceError: The same for the device it names.
    """
    return _checked(load_yaml(path), directory=Path(path).parent)


def load_model(path: str | Path) -> RunSpec:
    """The run that a spec file describes, which may leave out the batch: for those who look at the model only.

    Raises:
        SpecError: as `load`.
        DeviceError: as `load`.
    """
    document = load_yaml(path)
    if isinstance(document.data, dict) and not {"batch", "inputs"} & document.data.keys():
        document = replace(document, data={**document.data, "batch": {"micro_batch": 1}})
    return _checked(document, directory=Path(path).parent)


def of_preset(name: str, *, micro_batch: int, sequence_length: int, parameters: str, compute: str) -> RunSpec:
    """The run of a preset and these settings, everything else as it is without a key.

    Raises:
        SpecError: there is no such preset.
    """
    data = {
        "model": {"preset": name},
        "batch": {"micro_batch": micro_batch, "sequence_length": sequence_length},
        "precision": {"parameters": parameters, "compute": compute},
    }
    # Not held against the schema, which takes longer than all else: nothing here is a user's.
    return _build(SourcedDocument(data=data, lines={}, path=name), directory=Path())


def from_mapping(mapping: Mapping[str, Any], path: str = "<memory>") -> RunSpec:
    """The run that a mapping describes, of the shape that a spec file has.

    Args:
        mapping: What the YAML would hold. Relative paths inside start at the working directory.
        path: How errors name it.

    Raises:
        SpecError: It does not fit.
        DeviceError: The device does not exist or does not fit.
    """
    return _checked(SourcedDocument(data=_plain(mapping), lines={}, path=path), directory=Path())


def parse_spec(text: str, path: str, *, allows: Callable[[str], bool]) -> RunSpec:
    """The run that the text of a spec describes, from someone who may not have code run or files opened at will.

    Args:
        text: YAML.
        path: How errors name it.
        allows: Whether a function ("package.module:function") or a file that the spec names may be used.

    Raises:
        SpecError: It does not fit, or names what is not allowed; it points at the line.
        DeviceError: The device does not exist or does not fit.
    """
    document = parse_yaml(text, path)
    check(document, "model")
    data = cast(dict[str, Any], document.data)
    model, loss, device = data["model"], data.get("loss"), data.get("device", DEFAULT_DEVICE)
    named: tuple[tuple[KeyPath, object, bool], ...] = (
        (("model", "factory"), model.get("factory"), True),
        (("model", "config_file"), model.get("config_file"), True),
        (("loss",), loss, loss != "mean"),
        (("device",), device, isinstance(device, str) and device not in device_names()),
    )
    for key_path, value, is_outside in named:
        if value is not None and is_outside and not allows(str(value)):
            raise document.error(
                "functions and files of the server are not open to specs that are sent to it",
                key_path,
                hint="name a transformers class or a preset with inline config, and a device of `planner devices`",
            )
    _check_closed(document, model.get("config", {}), ("model", "config"))
    return _build(document, directory=Path())


# Keys by which a transformers config, or one inside it, names code or weights that are elsewhere, or how to load them.
# Source: transformers 5.24: `auto_map` and `trust_remote_code` in dynamic_module_utils.py, attention and experts from
# the hub in modeling_utils.py, `quantization_config` in quantizers/auto.py, timm's `create_model` for the rest.
_OPEN_KEYS = frozenset(
    {
        "auto_map",
        "trust_remote_code",
        "code_revision",
        "custom_pipelines",
        "name_or_path",
        "pretrained_model_name_or_path",
        "attn_implementation",
        "experts_implementation",
        "kernel_config",
        "quantization_config",
        "use_pretrained_backbone",
        "backbone_kwargs",
        "model_args",
        "checkpoint_path",
        "pretrained",
        "pretrained_cfg",
    }
)
_PATH_MARKS = ("/", "\\", ":", "..")  # of files, of repositories, and of URLs


def _check_closed(document: SourcedDocument, value: object, key_path: KeyPath) -> None:
    """Returns when a config can say nothing but sizes and choices.

    Raises:
        SpecError: It names, or might name, something outside of it.
    """
    if isinstance(value, str) and any(mark in value for mark in _PATH_MARKS):
        hint = "leave it out: a trace needs sizes and choices alone"
        raise document.error("text that could name a file, a repository or code is not taken here", key_path, hint=hint)
    if isinstance(value, list):
        for index, item in enumerate(value):
            _check_closed(document, item, (*key_path, index))
    if isinstance(value, Mapping):
        for key, item in value.items():
            if key.startswith("_") or key in _OPEN_KEYS:
                hint = "leave it out: a trace needs neither code nor weights"
                raise document.error("says where to load from, which is not taken here", (*key_path, key), hint=hint)
            _check_closed(document, item, (*key_path, key))


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
    return located_error(spec, message, ("inputs",), hint=hint)


def located_error(spec: RunSpec, message: str, key_path: KeyPath, *, hint: str | None = None) -> SpecError:
    """An error that points at a key of the spec's file, or at the nearest key around it."""
    document = SourcedDocument(data=None, lines=spec.lines, path=spec.path)
    error = document.error(message, key_path, hint=hint)
    assert isinstance(error, SpecError)
    return error


_ONLY_ESTIMATE = "`planner estimate` can"


def check_traceable(spec: RunSpec) -> None:
    """Returns when a traced step would be the spec's: what tracing cannot do yet is never left out silently.

    Raises:
        SpecError: the spec asks for something else; it points at the first such key.
    """
    optimizer, parallel, offload = spec.optimizer, spec.parallel, spec.offload
    chosen: tuple[tuple[KeyPath, bool], ...] = (
        (("checkpointing",), spec.checkpointing.mode is not CheckpointingMode.NONE),
        (("lora",), spec.lora is not None),
        (("loss_kernel",), spec.loss_kernel is not LossKernel.FULL),
        (("gradient_accumulation",), spec.gradient_accumulation > 1),
        (("optimizer", "name"), optimizer.name in _UNTRACED_OPTIMIZERS),
        (("optimizer", "implementation"), optimizer.implementation is not OptimizerImplementation.FOREACH),
        (("optimizer", "in_backward"), optimizer.in_backward),
        (("optimizer", "master_weights"), optimizer.master_weights is not None),
        (("optimizer", "state_dtype"), optimizer.state_dtype is not None),
        *((("parallel", key), getattr(parallel, key) > 1) for key in ("tp", "cp", "pp", "virtual_pp", "ep")),
        (("parallel", "zero"), parallel.zero > 0),
        (("parallel", "micro_batches"), parallel.micro_batches is not None),
        *((("offload", key), getattr(offload, key)) for key in ("activations", "optimizer", "parameters")),
    )
    for key_path, is_asked in chosen:
        if is_asked:
            hint = (
                f"leave it out: the plan decides what is recomputed; {_ONLY_ESTIMATE} count it"
                if key_path == ("checkpointing",)
                else f"leave it out here; {_ONLY_ESTIMATE} count it"
            )
            raise located_error(spec, "a traced step cannot have this yet", key_path, hint=hint)


_UNTRACED_OPTIMIZERS = frozenset({OptimizerName.MUON, OptimizerName.PAGED_ADAMW, OptimizerName.PAGED_ADAMW_8BIT})


def _plain(value: object) -> object:
    """A deep copy in which mappings are dicts and sequences are lists, as a file would give them."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value.value if isinstance(value, StrEnum) else value


def _checked(document: SourcedDocument, *, directory: Path) -> RunSpec:
    if isinstance(document.data, dict) and document.data.keys() >= {"version", "decisions"}:
        raise document.error("this is a plan, expected a spec", hint="name the one it was made for")
    if isinstance(document.data, dict) and "model_type" in document.data:
        names = document.data.get("architectures")
        name = names[0] if isinstance(names, list) and names else "CLASS"
        model = f"model: {{transformers: {name}, config_file: {Path(document.path).name}}}"
        raise document.error("this is a model's config, expected a spec", hint=f"write one with {model}, and batch")
    check(document, "model")
    return _build(document, directory=directory)


def _build(document: SourcedDocument, *, directory: Path) -> RunSpec:
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
        checkpointing=_checkpointing(document, data.get("checkpointing", "none")),
        lora=_lora(document, data.get("lora")),
        loss_kernel=LossKernel(data.get("loss_kernel", "full")),
        gradient_accumulation=data.get("gradient_accumulation", 1),
        offload=OffloadSpec(**data.get("offload", {})),
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
    given = ParallelSpec(**{"fsdp": 1, **data, "stage_layers": tuple(data.get("stage_layers", ()))})
    if given.fsdp > 1 and given.ddp > 1:
        hint = "leave one of them out; replicas of a sharded model need the memory of parallel.fsdp alone"
        raise document.error("cannot be combined with parallel.fsdp", ("parallel", "ddp"), hint=hint)
    parallel = _with_replicas(document, given, is_data_given="fsdp" in data or "ddp" in data)
    if parallel.zero and parallel.ddp == 1:
        hint = "add parallel.ddp or parallel.world_size" if parallel.fsdp == 1 else "use parallel.ddp for parallel.fsdp"
        raise document.error("ZeRO shards among the ddp replicas, and there is one", ("parallel", "zero"), hint=hint)
    if parallel.sp and parallel.tp == 1:
        hint = "add parallel.tp, or use parallel.cp to share sequences"
        raise document.error("sequence parallelism shares among the tp ranks", ("parallel", "sp"), hint=hint)
    for key in ("virtual_pp", "micro_batches"):
        if data.get(key, 1) > 1 and parallel.pp == 1:
            hint = "add parallel.pp" if key == "virtual_pp" else "add parallel.pp, or use gradient_accumulation"
            raise document.error("has no meaning without pipeline stages", ("parallel", key), hint=hint)
    if parallel.stage_layers and parallel.pp == 1:
        hint = "add parallel.pp"
        raise document.error("has no meaning without pipeline stages", ("parallel", "stage_layers"), hint=hint)
    if parallel.ep > 1 and (parallel.fsdp * parallel.ddp * parallel.tp * parallel.cp) % parallel.ep:
        message = (
            f"expected a divisor of the {parallel.fsdp * parallel.ddp * parallel.tp * parallel.cp} ranks of a stage"
        )
        raise document.error(f"{message}, found {parallel.ep}", ("parallel", "ep"), hint="experts share those ranks")
    return parallel


def _with_replicas(document: SourcedDocument, given: ParallelSpec, *, is_data_given: bool) -> ParallelSpec:
    """The degrees, with the data-parallel one from the world size where only that is given."""
    if given.world_size is None:
        return given
    model = given.tp * given.cp * given.pp
    ranks = model * given.fsdp * given.ddp
    factors = f"tp {given.tp} × cp {given.cp} × pp {given.pp}"
    if is_data_given and ranks != given.world_size:
        data = f"fsdp {given.fsdp}" if given.fsdp > 1 else f"ddp {given.ddp}"
        message = f"expected {ranks}, the product of {data} × {factors}, found {given.world_size}"
        raise document.error(message, ("parallel", "world_size"), hint="change a degree, or leave it out")
    if given.world_size % model:
        message = f"expected a multiple of {model}, which {factors} need, found {given.world_size}"
        raise document.error(message, ("parallel", "world_size"), hint="change a degree, or the number of ranks")
    return given if is_data_given else replace(given, ddp=given.world_size // model)


def _checkpointing(document: SourcedDocument, data: str | Mapping[str, int]) -> CheckpointingSpec:
    if not isinstance(data, str):
        return CheckpointingSpec(mode=CheckpointingMode.BLOCK, every=data["every"])
    if data not in list(CheckpointingMode):
        known = tuple(mode.value for mode in CheckpointingMode)
        hint = did_you_mean(data, known, plural="use {every: 4} for groups of blocks, or one of")
        raise document.error(f"unknown mode {data!r}", ("checkpointing",), hint=hint)
    return CheckpointingSpec(mode=CheckpointingMode(data))


def _lora(document: SourcedDocument, data: Mapping[str, Any] | None) -> LoraSpec | None:
    if data is None:
        return None
    return LoraSpec(
        rank=data["rank"],
        targets=tuple(data.get("targets", ())),
        dropout=float(data.get("dropout", 0.0)),
        dtype=_training_dtype(document, ("lora", "dtype"), data.get("dtype", "float32")),
        quantization=QuantizationName(data["quantization"]) if "quantization" in data else None,
    )


def _precision(document: SourcedDocument, data: Mapping[str, Any], parallel: ParallelSpec) -> PrecisionSpec:
    names = {key: _training_dtype(document, ("precision", key), text) for key, text in data.items()}
    parameters = names.get("parameters", "float32")
    compute = names.get("compute", parameters)
    if compute != parameters and compute not in _AUTOCAST_DTYPES and parallel.fsdp == 1:
        message = f"autocast computes in {' or '.join(_AUTOCAST_DTYPES)}, found {compute}"
        raise document.error(message, ("precision", "compute"), hint=f"or leave it out, to compute in {parameters}")
    return PrecisionSpec(parameters=parameters, compute=compute)


# 8-bit states, those in unified memory, Adafactor's in float32, and none at all.
_OWN_STATE_DTYPE = frozenset(
    {
        OptimizerName.ADAMW_8BIT,
        OptimizerName.ADAM_8BIT,
        OptimizerName.PAGED_ADAMW,
        OptimizerName.PAGED_ADAMW_8BIT,
        OptimizerName.ADAFACTOR,
        OptimizerName.NONE,
    }
)
# Source: torch 2.13, torch/optim: adam.py, adamw.py, adagrad.py and sgd.py take `fused`.
_UNFUSED = frozenset({OptimizerName.ADAFACTOR, OptimizerName.LION, OptimizerName.MUON})


def _optimizer(document: SourcedDocument, data: Mapping[str, Any]) -> OptimizerSpec:
    name = OptimizerName(data["name"])
    if "momentum" in data and name is not OptimizerName.SGD:
        raise document.error(f"only sgd has momentum, and the optimizer is {name}", ("optimizer", "momentum"))
    is_plain_sgd = name is OptimizerName.SGD and not data.get("momentum")
    if "state_dtype" in data and (name in _OWN_STATE_DTYPE or is_plain_sgd):
        message = f"{name} has states of its own kind, or none"
        raise document.error(message, ("optimizer", "state_dtype"), hint="leave it out")
    if data.get("implementation") == OptimizerImplementation.FUSED and name in _UNFUSED:
        raise document.error(f"PyTorch has no fused {name}", ("optimizer", "implementation"), hint="leave it out")
    dtypes = {
        key: _training_dtype(document, ("optimizer", key), data[key])
        for key in ("master_weights", "state_dtype")
        if key in data
    }
    return OptimizerSpec(
        name=name,
        momentum=float(data.get("momentum", 0.0)),
        implementation=OptimizerImplementation(data.get("implementation", "foreach")),
        in_backward=data.get("in_backward", False),
        **dtypes,
    )


def _training_dtype(document: SourcedDocument, key_path: KeyPath, text: str) -> str:
    name = _dtype(document, key_path, text)
    if name not in _TRAINING_DTYPES:
        raise document.error(f"expected one of {', '.join(_TRAINING_DTYPES)}, found {name}", key_path)
    return name


def _dtype(document: SourcedDocument, key_path: KeyPath, text: str) -> str:
    try:
        return parse_dtype(text)
    except UnitError as error:
        raise document.error(str(error), key_path) from None
