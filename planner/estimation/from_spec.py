"""The `Run` of a model spec, or one located sentence that says why it has none."""

from collections.abc import Iterator, Mapping

from planner.architecture import Architecture, Matrix, Positions, block_parameters
from planner.errors import SpecError
from planner.estimation.blocks import Adapters, AttentionKind, Loss, Writer
from planner.estimation.estimate import computation_of
from planner.estimation.parallel import DegreesError, check_degrees
from planner.estimation.run import Degrees, Run, Sharding, ZeroBuckets
from planner.estimation.step import Checkpointing
from planner.families import ConfigError, UnknownArchitectureError, architecture_of, known_classes
from planner.spec import (
    AttentionKernel,
    CheckpointingMode,
    LoraSpec,
    LossKernel,
    ModelKind,
    ParallelSpec,
    RunSpec,
    located_error,
)
from planner.yaml_source import KeyPath

_TRACE = "`planner trace` reads any model, with torch"
# What modelling files call the layers that `planner.architecture` has by one name.
_ALIASES: Mapping[str, tuple[str, ...]] = {
    "c_attn": ("qkv_proj",),
    "query_key_value": ("qkv_proj",),
    "c_proj": ("o_proj", "down_proj"),
    "c_fc": ("up_proj",),
    "dense": ("o_proj",),
    "out_proj": ("o_proj",),
    "dense_h_to_4h": ("up_proj",),
    "dense_4h_to_h": ("down_proj",),
    "fc1": ("up_proj",),
    "fc2": ("down_proj",),
}
_FULLY_SHARDED = frozenset({Sharding.ZERO3, Sharding.FSDP1, Sharding.FSDP2})
# The others leave the model's caller no logits. Source: torchtune, CEWithChunkedOutputLoss, whose recipes delete
# them; Liger-Kernel, fused_linear_cross_entropy.
_HAVE_LOGITS = frozenset({LossKernel.FULL, LossKernel.FUSED})


def run_of(spec: RunSpec) -> Run:
    """The run of a model spec.

    Raises:
        SpecError: its model is not known in closed form, its sizes or degrees contradict each other, or it asks for
            something that is not counted yet; it points at the key.
    """
    architecture = _architecture(spec)
    _check_sizes(spec, architecture)
    _check_degrees(spec, architecture)
    attention = AttentionKind.EAGER if spec.attention is AttentionKernel.EAGER else AttentionKind.FUSED
    if architecture.attention_softcap:
        attention = AttentionKind.EAGER  # no kernel of scaled_dot_product_attention caps scores
    parallel, precision, optimizer = spec.parallel, spec.precision, spec.optimizer
    assert spec.batch.sequence_length is not None
    run = Run(
        architecture=architecture,
        micro_batch=spec.batch.micro_batch,
        length=spec.batch.sequence_length,
        # DeepSpeed holds parameters in the dtype it computes in, and a copy of them for its optimizer in float32.
        # Source: deepspeed/runtime/zero/stage_1_and_2.py, `single_partition_of_fp32_groups`.
        parameter_dtype=precision.compute if parallel.zero else precision.parameters,
        compute_dtype=precision.compute,
        autocast=parallel.fsdp == 1 and not parallel.zero,
        master_dtype=_FP32 if parallel.zero and precision.compute != _FP32 else optimizer.master_weights,
        optimizer=optimizer.name,
        momentum=optimizer.momentum,
        step=optimizer.implementation,
        state_dtype=optimizer.state_dtype,
        in_backward=optimizer.in_backward,
        accumulates=spec.gradient_accumulation > 1,
        checkpointing=Checkpointing(spec.checkpointing.mode.value),
        group=min(spec.checkpointing.every, architecture.layers),
        attention=attention,
        loss=Loss(spec.loss_kernel.value),
        logits_stay=spec.loss_kernel in _HAVE_LOGITS,
        adapters=None if spec.lora is None else _adapters(spec, spec.lora, architecture),
        quantization=None if spec.lora is None else spec.lora.quantization,
        sharding=_sharding(parallel),
        degrees=_degrees(parallel),
        stage_layers=parallel.stage_layers,
        micro_batches=parallel.micro_batches or max(parallel.pp, spec.gradient_accumulation),
        offloads_inputs=spec.offload.activations,
        offloads_optimizer=spec.offload.optimizer,
        offloads_parameters=spec.offload.parameters,
        zero=ZeroBuckets() if parallel.zero else None,
    )
    _check_counted(spec, run)
    try:
        check_degrees(run)
    except DegreesError as error:
        raise located_error(spec, error.what, ("parallel", _DEGREE_KEYS[error.degree]), hint=error.hint) from None
    return run


_DEGREE_KEYS = {"tensor": "tp", "context": "cp", "pipeline": "pp", "virtual": "micro_batches", "expert": "ep"}


# -- the model


_FP32 = "float32"


def _architecture(spec: RunSpec) -> Architecture:
    if spec.loss is not None:
        message = "a loss other than the model's own is not known in closed form"
        raise located_error(spec, message, ("loss",), hint=f"leave it out, or name a loss_kernel; {_TRACE}")
    if spec.inputs:
        message = "only models that read tokens are known in closed form"
        raise located_error(spec, message, ("inputs",), hint=f"give batch.sequence_length instead; or {_TRACE}")
    if spec.model.kind is ModelKind.FACTORY:
        message = "what a function builds is not known in closed form"
        raise located_error(spec, message, ("model", "factory"), hint=_TRACE)
    where: KeyPath = ("model", "preset" if spec.model.preset else "transformers")
    try:
        architecture = architecture_of(spec.model.name, spec.model.config)
    except UnknownArchitectureError:
        known = known_classes()
        some = ", ".join(
            [name for name in ("LlamaForCausalLM", "Qwen3ForCausalLM", "GPT2LMHeadModel") if name in known]
        )
        message = f"{spec.model.name} is not an architecture that is known in closed form"
        raise located_error(spec, message, where, hint=f"{len(known)} are, such as {some}; {_TRACE}") from None
    except ConfigError as error:
        raise _config_error(spec, str(error), *((error.key,) if error.key else _HEAD_KEYS)) from None
    if spec.batch.sequence_length is None:
        raise located_error(spec, "'sequence_length' is missing", ("batch",), hint="the model reads tokens")
    return architecture


# What an error about the heads is about: the keys that a configuration may have given them with.
_HEAD_KEYS = ("num_key_value_heads", "num_kv_heads", "num_attention_heads", "n_head")


def _config_error(spec: RunSpec, message: str, *keys: str) -> SpecError:
    """An error at the first of the configuration's keys that the spec has, or at the model."""
    given = next((key for key in keys if ("model", "config", key) in spec.lines), keys[0])
    return located_error(spec, message, ("model", "config", given), hint="correct the model's configuration")


def _check_sizes(spec: RunSpec, a: Architecture) -> None:
    has_own_width = spec.model.config.get("head_dim") is not None or a.latent is not None
    if a.hidden % a.heads and not has_own_width and a.q_width != a.hidden and a.family in _DIVIDE_WIDTH:
        raise _config_error(
            spec, f"{a.heads} heads do not divide the width of {a.hidden}", "num_attention_heads", "n_head"
        )
    if a.experts is not None and a.experts.chosen > a.experts.count:
        message = f"a token cannot have {a.experts.chosen} of {a.experts.count} experts"
        raise _config_error(spec, message, "num_experts_per_tok")
    length = spec.batch.sequence_length
    if a.positions is Positions.LEARNED and length is not None and length > a.max_positions:
        message = f"the model has {a.max_positions:,} positions, found {length:,}"
        hint = "use shorter sequences, or more positions in model.config"
        raise located_error(spec, message, ("batch", "sequence_length"), hint=hint)


# Families whose modelling files refuse, or reshape wrongly, a width that heads do not divide.
_DIVIDE_WIDTH = frozenset(
    {"gpt2", "gpt_bigcode", "gpt_neox", "opt", "bert", "falcon", "llama", "mistral", "qwen2", "phi"}
)


# -- the degrees


def _check_degrees(spec: RunSpec, a: Architecture) -> None:
    for key, is_wrong, message, hint in _contradictions(spec, a):
        if is_wrong:
            raise located_error(spec, message, ("parallel", key), hint=hint)


def _contradictions(spec: RunSpec, a: Architecture) -> Iterator[tuple[str, bool, str, str]]:
    """The key, whether it contradicts the model, the message and the way out."""
    p = spec.parallel
    yield "tp", a.heads % p.tp > 0, f"{p.tp} ranks cannot share {a.heads} heads", "use a divisor of the heads"
    yield (
        "tp",
        a.latent is None and a.kv_heads % p.tp > 0 and p.tp % a.kv_heads > 0,
        f"{p.tp} ranks can neither share nor repeat {a.kv_heads} key heads",
        "use a divisor or a multiple of the key heads",
    )
    for width in _shared_widths(p, a):
        yield (
            "tp",
            width % p.tp > 0,
            f"{p.tp} ranks cannot share a width of {width:,}",
            "use a divisor of the ffn width",
        )
    chunks = p.pp * p.virtual_pp
    stages = f"{p.pp} stages" if p.virtual_pp == 1 else f"{p.pp} stages of {p.virtual_pp} chunks"
    yield (
        "pp",
        not p.stage_layers and a.layers % chunks > 0,
        f"{stages} cannot share {a.layers} layers evenly",
        "use a divisor of the layers, or list those of each in parallel.stage_layers",
    )
    yield (
        "stage_layers",
        bool(p.stage_layers) and (len(p.stage_layers), sum(p.stage_layers)) != (chunks, a.layers),
        f"expected {chunks} numbers that add up to {a.layers} layers, found {len(p.stage_layers)} that add up to "
        f"{sum(p.stage_layers)}",
        "give one for each stage, or chunk of one",
    )
    count = a.experts.count if a.experts is not None else 0
    yield "ep", p.ep > 1 and not count, "the model has no experts to share", "leave it out"
    yield "ep", count % p.ep > 0, f"{p.ep} ranks cannot share {count} experts", "use a divisor of the experts"
    length = spec.batch.sequence_length or 1
    parts = p.cp * (p.tp if p.sp else 1)
    yield (
        "cp" if p.cp > 1 else "sp",
        length % parts > 0,
        f"{parts} ranks cannot share sequences of {length:,} tokens",
        "use a divisor of batch.sequence_length",
    )


def _shared_widths(p: ParallelSpec, a: Architecture) -> tuple[int, ...]:
    """The intermediate sizes that `tp` ranks divide; of experts only where each rank does not have whole ones."""
    if a.experts is None:
        return (a.ffn,)
    routed = (a.experts.ffn,) if p.ep == 1 else ()
    dense = (a.ffn,) if a.experts.dense_layers else ()
    return (*dense, *routed, *((a.experts.shared_ffn,) if a.experts.shared_ffn else ()))


def _sharding(p: ParallelSpec) -> Sharding:
    if p.fsdp > 1:
        return Sharding.FSDP2
    if p.zero:
        return (Sharding.ZERO1, Sharding.ZERO2, Sharding.ZERO3)[p.zero - 1]
    return Sharding.DDP if p.ddp > 1 else Sharding.NONE


def _degrees(p: ParallelSpec) -> Degrees:
    return Degrees(
        data=max(p.fsdp, p.ddp),
        tensor=p.tp,
        sequence=p.sp,
        context=p.cp,
        pipeline=p.pp,
        virtual=p.virtual_pp,
        expert=p.ep,
        expert_tensor=1 if p.ep > 1 else None,  # whole experts, as torchtitan and Megatron's documentation have it
    )


# -- adapters


def _adapters(spec: RunSpec, lora: LoraSpec, a: Architecture) -> Adapters:
    linear = _linear_names(a)
    targets: list[str] = []
    for place, name in enumerate(lora.targets):
        meant = [real for real in _ALIASES.get(name, (name,)) if real in linear]
        if not meant:
            hint = f"known ones: {', '.join(linear)}"
            raise located_error(spec, f"{a.family} has no linear layer {name!r}", ("lora", "targets", place), hint=hint)
        targets += meant
    return Adapters(
        rank=lora.rank,
        targets=tuple(dict.fromkeys(targets)) or linear,
        dtype=lora.dtype,
        dropout=lora.dropout > 0,
    )


def _linear_names(a: Architecture) -> tuple[str, ...]:
    def is_target(m: Matrix) -> bool:
        return m.is_linear and not m.is_expert and m.name != "router"

    layers = {0, a.layers - 1}
    return tuple(dict.fromkeys(m.name for layer in layers for m in block_parameters(a, layer) if is_target(m)))


# -- what the figures do not cover


def _check_counted(spec: RunSpec, run: Run) -> None:
    """Refuses what the figures would leave out. An estimate that forgets something may say that a run fits."""
    offload, is_sharded = spec.offload, run.sharding in _FULLY_SHARDED
    checks: tuple[tuple[KeyPath, bool, str, str], ...] = (
        (
            ("offload", "activations"),
            offload.activations and run.checkpointing is Checkpointing.NONE,
            "only the inputs of checkpoints are offloaded",
            "add checkpointing: block; `planner solve` offloads single tensors",
        ),
        (("offload", "parameters"), offload.parameters, "offloaded parameters are not counted yet", "leave it out"),
        (
            ("lora", "quantization"),
            run.quantization is not None and is_sharded and run.sharding is Sharding.ZERO3,
            "quantized weights under ZeRO 3 are not counted",
            "use parallel.fsdp, or no quantization",
        ),
        (
            # Source: transformers 5.24, integrations/bitsandbytes.py, `replace_with_bnb_linear`: modules that are
            # nn.Linear; integrations/moe.py: all experts of a layer are one parameter.
            ("lora", "quantization"),
            run.quantization is not None and run.architecture.experts is not None,
            "bitsandbytes quantizes linear layers, and experts are none in transformers 5.24",
            "leave it out",
        ),
        (
            ("checkpointing",),
            spec.checkpointing.mode is CheckpointingMode.BLOCK and spec.checkpointing.every > run.architecture.layers,
            f"expected at most {run.architecture.layers}, the layers of the model",
            "checkpoint fewer blocks together",
        ),
        (
            ("optimizer", "in_backward"),
            run.in_backward and run.accumulates,
            "gradients that are accumulated cannot be freed in backward",
            "leave it out, or gradient_accumulation",
        ),
        (
            ("optimizer", "in_backward"),
            run.in_backward and run.adds_gradients,
            "gradients of a pipeline's micro-batches are added up, and cannot be freed in backward",
            "leave it out",
        ),
        (
            ("optimizer", "in_backward"),
            run.in_backward and run.zero is not None,
            "ZeRO's optimizer steps when all gradients are reduced",
            "leave it out, or parallel.zero",
        ),
        (
            ("optimizer", "in_backward"),
            run.in_backward and run.offloads_optimizer,
            "an optimizer on the host steps when backward is done",
            "leave it out, or offload.optimizer",
        ),
        (
            ("optimizer", "master_weights"),
            run.zero is not None and spec.optimizer.master_weights not in (None, _FP32),
            f"ZeRO's own copy of the parameters is in {_FP32}, found {spec.optimizer.master_weights}",
            "leave it out, or parallel.zero",
        ),
        (
            ("parallel", "cp"),
            run.degrees.context > 1 and spec.attention is AttentionKernel.EAGER,
            "ranks that share sequences exchange what a kernel makes, and eager attention is none",
            "use another attention",
        ),
        (
            ("parallel", "cp"),
            run.degrees.context > 1 and Writer(run.architecture, computation_of(run)).has_no_kernel,
            f"ranks that share sequences exchange what a kernel makes, and none has these heads in {run.compute_dtype}",
            "use tp with sp, or for grouped heads compute in bfloat16",
        ),
    )
    for key_path, is_asked, message, hint in checks:
        if is_asked:
            raise located_error(spec, message, key_path, hint=hint)
