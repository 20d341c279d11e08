"""mosaicml/llm-foundry's throughput benchmarks: MPT under Composer's FSDP, micro-batches as large as fit.

Sources: scripts/train/benchmarking/submit_benchmarks.py at 12a6319: mixed precision PURE, low-precision norms, triton's
attention, checkpoints without reentrance; llmfoundry/models/mpt/modeling_mpt.py: `fused_crossentropy` by default.

The fused loss is counted on float32 logits, which flash-attn's does not make: small models with large vocabularies are
overestimated, some beyond their device.
"""

from benchmarks.measurements.cells import Cells, Refused, degree, number
from planner.architecture import Architecture
from planner.estimation.blocks import Loss
from planner.estimation.run import Degrees, Run, Sharding
from planner.estimation.step import Checkpointing
from planner.spec import OptimizerName


def run_of(c: Cells, a: Architecture) -> Run:
    """A run of the benchmark."""
    if "True" in c["notes"]:
        raise Refused("activations in the host's memory are not described for Composer")
    return Run(
        architecture=a,
        micro_batch=number(c, "micro_batch"),
        length=number(c, "seq"),
        parameter_dtype="float32",
        compute_dtype="bfloat16",
        autocast=False,
        optimizer=OptimizerName.ADAMW,
        checkpointing=Checkpointing.NONE if c["ac_mode"] == "none" else Checkpointing.BLOCK,
        loss=Loss.FUSED,
        logits_stay=True,
        sharding=Sharding.FSDP1,
        degrees=Degrees(data=degree(c)),
    )
