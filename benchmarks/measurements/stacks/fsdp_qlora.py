"""AnswerDotAI/fsdp_qlora's train.py of March 2024: transformers' Llama and Mistral, peft, FSDP 1 over two GPUs.

Sources: train.py: rank 64 beside q, k, v and the feed-forward layer, dropout 0.1, all in bfloat16; FSDP without
original parameters, which wraps blocks and what is trained; `output` is dropped before the next forward.
benchmarks_03_2024.md: reentrant checkpoints; "ddp" is FSDP that shards nothing. That logits are made float32 in the
model and shifted is as in the transformers of `fms`; the version used here is not stated.
"""

from benchmarks.measurements.cells import Cells, Refused, degree, number, quantization
from planner.architecture import Architecture
from planner.estimation.blocks import Adapters, Loss
from planner.estimation.run import Degrees, Run, Sharding
from planner.estimation.step import Checkpointing
from planner.spec import OptimizerName

_RANK = 64
_TARGETS = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "down_proj")


def run_of(c: Cells, a: Architecture) -> Run:
    """A run of train.py."""
    if c["offload"]:
        raise Refused("parameters in the host's memory that visit the device are not counted")
    shards = degree(c)
    return Run(
        architecture=a,
        micro_batch=number(c, "micro_batch"),
        length=number(c, "seq"),
        parameter_dtype="bfloat16",
        compute_dtype="bfloat16",
        optimizer=OptimizerName.ADAMW,
        checkpointing=Checkpointing.BLOCK,
        replays_whole=True,
        loss=Loss.SHIFTED,
        upcasts_in_model=True,
        logits_stay=True,
        adapters=Adapters(rank=_RANK, targets=_TARGETS, dtype="bfloat16", dropout=True),
        quantization=quantization(c),
        sharding=Sharding.FSDP1 if shards > 1 else Sharding.NONE,
        degrees=Degrees(data=shards),
    )
