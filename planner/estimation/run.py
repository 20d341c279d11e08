"""A training run as the numbers that its memory depends on: what `planner.estimation.estimate` reads.

Model specs become runs in `planner.estimation.from_spec`; the configurations of other tools do in the linter, and
measurements in the benchmarks.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from planner.architecture import Architecture
from planner.estimation.blocks import Adapters, AttentionKind, ContextMethod, Implementation, Kernels, Loss
from planner.estimation.step import Checkpointing
from planner.spec import OptimizerImplementation, OptimizerName, QuantizationName


class Sharding(StrEnum):
    """How data-parallel ranks divide what they hold.

    NONE: each rank holds everything, and reduces nothing. DDP: everything, and gradient buckets. ZERO1: optimizer
    state is divided. ZERO2: gradients, too. ZERO3: parameters, too. FSDP1 and FSDP2: the same as ZERO3, in PyTorch's
    two implementations.
    """

    NONE = "none"
    DDP = "ddp"
    ZERO1 = "zero1"
    ZERO2 = "zero2"
    ZERO3 = "zero3"
    FSDP1 = "fsdp1"
    FSDP2 = "fsdp2"


@dataclass(frozen=True, slots=True, kw_only=True)
class Degrees:
    """Over how many ranks each thing is divided; 1 for not.

    Attributes:
        data: ranks that share parameters, gradients or optimizer state, or hold replicas.
        tensor: of each matrix, with norms and residuals too if `sequence`.
        sequence: sequence parallelism beside tensor parallelism.
        context: of the sequence.
        pipeline: of the layers; `virtual` chunks of them on each rank.
        virtual: chunks of layers on each pipeline rank, interleaved; 1 for 1F1B.
        expert: of each layer's experts.
        expert_tensor: of each expert's matrices; None for as many as `tensor`.
        replicas: groups of `data` ranks, each of which holds everything once (HSDP).
    """

    data: int = 1
    tensor: int = 1
    sequence: bool = False
    context: int = 1
    pipeline: int = 1
    virtual: int = 1
    expert: int = 1
    expert_tensor: int | None = None
    replicas: int = 1

    @property
    def of_experts(self) -> int:
        """Ranks that share each expert's matrices."""
        return self.tensor if self.expert_tensor is None else self.expert_tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroBuckets:
    """Buffers of DeepSpeed's ZeRO, in elements; the defaults are DeepSpeed's.

    Attributes:
        reduce: gradients that are reduced at once.
        allgather: parameters that are gathered at once after a step of ZeRO 1 or 2.
        max_live: gathered parameters beyond which ZeRO 3 gathers nothing ahead.
        prefetch: parameters that ZeRO 3 gathers ahead.
        sub_group: parameters that ZeRO 3's optimizer updates at once.
        overlaps: gradients are reduced while others are made, from a second buffer; None for the stage's default,
            which is yes for ZeRO 3 alone.

    Source: deepspeed.ai/docs/config-json, "ZeRO Optimizations for FP16 Training".
    """

    reduce: int = 500_000_000
    allgather: int = 500_000_000
    max_live: int = 1_000_000_000
    prefetch: int = 50_000_000
    sub_group: int = 1_000_000_000
    overlaps: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One training step.

    Attributes:
        architecture: the model.
        micro_batch: sequences a rank works on at a time.
        length: tokens of each, before context parallelism divides them.
        parameter_dtype, compute_dtype, gradient_dtype: how parameters are held, what products are computed in, and
            what gradients are held in.
        autocast: products are computed under autocast where the dtypes differ; otherwise parameters are cast once,
            as FSDP's mixed precision does.
        master_dtype: a copy of the parameters that the optimizer updates; None for none.
        optimizer: which.
        momentum: of SGD.
        step: how its step runs.
        state_dtype: of its states; None for the parameters'.
        in_backward: each parameter is updated as soon as its gradient is there, and the gradient freed.
        accumulates: gradients of an earlier micro-batch are there.
        gradients_persist: gradients are zeroed, not freed, between steps.
        checkpointing, group: what blocks keep, and how many make one checkpoint.
        replays_whole: reentrant checkpointing.
        attention, norm, activation, rotary, norm_in_float32, expands_kv, loss, loss_dtype, chunks: kernels; see
            `Computation`.
        upcasts_in_model: see `Computation`.
        logits_stay: the model's output is held through backward.
        dropout: the model's dropouts are on.
        adapters: LoRA; the base is frozen then.
        adapter_autocast: see `Computation`.
        quantization: of the frozen base, or None.
        quantizes_head, quantized_saves_input, quantized_from: see `Computation`.
        outputs_linger: a name holds the last step's outputs until the next forward has made its own, and with their
            graph what products with quantized weights kept outside of autograd.
        flat_gradients: one flat parameter of each FSDP unit holds what is trained and what is frozen, and backward
            makes its gradient whole.
        defers_reduction: gradients of all but the last micro-batch of a step are kept whole on every rank.
        sharding, degrees: parallelism.
        micro_batches: in a pipeline's step.
        implementation, context_method, imbalance, grouped_experts, copies_attention_output: see `Computation`.
        stage: the pipeline's rank that is meant, from 0; figures are of one rank.
        stage_layers: layers of each chunk of the pipeline, in the order of the model; empty for as even as can be.
        micro_batch_group: micro-batches that an interleaved pipeline runs through a chunk before it turns to the
            next; None for as many as it has ranks.
        zero: DeepSpeed's buffers, where its ZeRO is used; None leaves them out.
        workspace_bytes: what kernel libraries hold through PyTorch's allocator, whatever the model.
        counts_blocks: FSDP1's shards are counted as the allocator's blocks, as `max_memory_allocated` does, rather than
            as tensors.
        offloads_inputs: checkpointed inputs wait in the host's memory.
        offloads_optimizer: optimizer state is in the host's memory.
        offloads_parameters: parameters are, and visit the device.
        is_planned: checkpoints are those of `planner.apply`, not of torch.utils.checkpoint: what random ops made is
            kept, and where blocks are units of FSDP, the input of each, since replays do not cross them.
    """

    architecture: Architecture
    micro_batch: int
    length: int
    parameter_dtype: str = "float32"
    compute_dtype: str = "float32"
    gradient_dtype: str | None = None
    autocast: bool = True
    master_dtype: str | None = None
    optimizer: OptimizerName = OptimizerName.ADAMW
    momentum: float = 0.0
    step: OptimizerImplementation = OptimizerImplementation.FOREACH
    state_dtype: str | None = None
    in_backward: bool = False
    accumulates: bool = False
    gradients_persist: bool = False
    checkpointing: Checkpointing = Checkpointing.NONE
    group: int = 1
    replays_whole: bool = False
    attention: AttentionKind = AttentionKind.FUSED
    norm: Kernels = Kernels.EAGER
    activation: Kernels = Kernels.EAGER
    rotary: Kernels = Kernels.EAGER
    norm_in_float32: bool = False
    expands_kv: bool = False
    loss: Loss = Loss.FULL
    loss_dtype: str = "float32"
    chunks: int = 8
    upcasts_in_model: bool = False
    logits_stay: bool = True
    dropout: bool = True
    adapter_autocast: bool = False
    adapters: Adapters | None = None
    quantization: QuantizationName | None = None
    quantizes_head: bool = False
    quantized_saves_input: bool = False
    quantized_from: str | None = None
    outputs_linger: bool = False
    flat_gradients: bool = False
    defers_reduction: bool = False
    sharding: Sharding = Sharding.NONE
    degrees: Degrees = field(default_factory=Degrees)
    micro_batches: int = 1
    implementation: Implementation = Implementation.TRANSFORMERS
    context_method: ContextMethod = ContextMethod.RING
    imbalance: float = 1.0
    grouped_experts: bool = True
    copies_attention_output: bool = False
    stage: int = 0
    stage_layers: tuple[int, ...] = ()
    micro_batch_group: int | None = None
    zero: ZeroBuckets | None = None
    workspace_bytes: int = 0
    counts_blocks: bool = False
    offloads_inputs: bool = False
    offloads_optimizer: bool = False
    offloads_parameters: bool = False
    is_planned: bool = False

    @property
    def adds_gradients(self) -> bool:
        """Several micro-batches' gradients are added up before the optimizer's step."""
        return self.accumulates or (self.degrees.pipeline > 1 and self.micro_batches > 1)
