"""What a training config asks for, in words that no framework owns.

Every fact knows the setting that says it, or that it is the framework's default. A fact that a config does not
determine is None, never a guess.
"""

from enum import StrEnum
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from planner.configs.config import Setting

from planner.records import record

T = TypeVar("T")

ALL_LINEAR = "all-linear"  # peft's word, as a target of adapters


class Checkpointing(StrEnum):
    """What backward recomputes."""

    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"


class Attention(StrEnum):
    """How attention is computed: whether it holds a matrix of scores, and whether it knows where packed rows end."""

    EAGER = "eager"
    SDPA = "sdpa"
    FLASH = "flash"
    FLEX = "flex"
    OTHER = "other"


class Sharding(StrEnum):
    """What data-parallel ranks divide among themselves."""

    NONE = "none"
    OPTIMIZER = "optimizer"  # ZeRO-1
    GRADIENTS = "gradients"  # ZeRO-2, FSDP's SHARD_GRAD_OP
    PARAMETERS = "parameters"  # ZeRO-3, FSDP


class Loss(StrEnum):
    """How much of the logits exists at one time."""

    FULL = "full"
    CHUNKED = "chunked"
    FUSED = "fused"


@record
class Fact(Generic[T]):
    """A value, and the setting that says it; None when it is the framework's default."""

    value: T
    setting: "Setting | None" = None


@record
class Facts:
    """What is known of a training run, or of an inference server. Degrees are numbers of ranks; lengths are tokens.

    Attributes:
        model: A hub name or path, as the config writes it.
        sequence_length: Tokens of a training row at most.
        micro_batch: Rows that one device works on at a time.
        accumulation_steps: Micro-batches per optimizer step.
        eval_batch: Rows of one evaluation batch on one device.
        checkpointing: What backward recomputes.
        reentrant: Whether checkpointing is the reentrant kind.
        activation_offload: Whether saved activations go to host memory.
        attention: The attention implementation.
        packing: Whether rows are packed from several documents.
        padding_free: Whether rows of a batch are joined into one without padding.
        pad_to_length: Whether every row is padded to `sequence_length`.
        optimizer: Its name, as the config writes it.
        optimizer_in_backward: Whether each parameter is updated, and its gradient freed, within backward.
        optimizer_offload: Whether optimizer state is held in host memory.
        parameter_offload: Whether parameters are held in host memory.
        compute_dtype: A torch dtype name, such as "bfloat16".
        parameter_dtype: That of the parameters, of the frozen ones where adapters are trained; autocast is on where the
            two differ.
        quantization_bits: Bits per frozen weight: 4 or 8.
        lora: Whether only low-rank adapters are trained.
        lora_rank: Their rank.
        lora_targets: Names of the linear layers that have one, or `ALL_LINEAR` alone for those of all blocks.
        loss: How much of the logits exists at one time.
        sharding: What data-parallel ranks divide.
        data_parallel: Its degree.
        ranks: All ranks of the run.
        tensor_parallel: Its degree.
        sequence_parallel: Whether norms and residuals are divided among tensor-parallel ranks.
        pipeline_parallel: Its degree.
        context_parallel: Its degree; Ulysses and ring attention both.
        expert_parallel: Its degree.
        compile: Whether torch.compile is on.
        kv_memory_fraction: Of device memory, what an inference engine takes.
        kv_dtype: Format of keys and values.
        max_context: Tokens of a served sequence at most.
        max_sequences: Sequences served at one time at most.
    """

    model: Fact[str] | None = None
    sequence_length: Fact[int] | None = None
    micro_batch: Fact[int] | None = None
    accumulation_steps: Fact[int] | None = None
    eval_batch: Fact[int] | None = None
    checkpointing: Fact[Checkpointing] | None = None
    reentrant: Fact[bool] | None = None
    activation_offload: Fact[bool] | None = None
    attention: Fact[Attention] | None = None
    packing: Fact[bool] | None = None
    padding_free: Fact[bool] | None = None
    pad_to_length: Fact[bool] | None = None
    optimizer: Fact[str] | None = None
    optimizer_in_backward: Fact[bool] | None = None
    optimizer_offload: Fact[bool] | None = None
    parameter_offload: Fact[bool] | None = None
    compute_dtype: Fact[str] | None = None
    parameter_dtype: Fact[str] | None = None
    quantization_bits: Fact[int] | None = None
    lora: Fact[bool] | None = None
    lora_rank: Fact[int] | None = None
    lora_targets: Fact[tuple[str, ...]] | None = None
    loss: Fact[Loss] | None = None
    sharding: Fact[Sharding] | None = None
    data_parallel: Fact[int] | None = None
    ranks: Fact[int] | None = None
    tensor_parallel: Fact[int] | None = None
    sequence_parallel: Fact[bool] | None = None
    pipeline_parallel: Fact[int] | None = None
    context_parallel: Fact[int] | None = None
    expert_parallel: Fact[int] | None = None
    compile: Fact[bool] | None = None
    kv_memory_fraction: Fact[float] | None = None
    kv_dtype: Fact[str] | None = None
    max_context: Fact[int] | None = None
    max_sequences: Fact[int] | None = None
