"""foundation-model-stack/fms-acceleration: transformers' Trainer with fused kernels, quantized bases, FSDP 1."""

import re

from benchmarks.measurements.cells import Cells, Refused, degree, number, quantization, rank
from planner.architecture import Architecture
from planner.estimation.blocks import Adapters, Kernels, Loss
from planner.estimation.run import Degrees, Run, Sharding
from planner.estimation.step import Checkpointing
from planner.spec import OptimizerImplementation, OptimizerName


def run_of(c: Cells, a: Architecture) -> Run:
    """The benchmarks of fms-acceleration: transformers' Trainer, flash-attn 2, FSDP 1, peft with float32 adapters.

    Sources: fms-acceleration scripts/benchmarks (scenarios.yaml, accelerate configs); transformers at the version in
    the notes: modeling_llama.py, trainer.py `compute_loss` (outputs are dropped before backward), loss/loss_utils.py;
    peft tuners/lora/layer.py and `autocast_adapter_dtype`.
    """
    notes = c["notes"]
    if a.family == "gpt_bigcode":
        raise Refused("the loss of GPTBigCode in that version of transformers is not described")
    framework = re.search(r"framework=([\w-]+)", notes)
    if framework is None:
        raise Refused("the framework is not stated")
    is_fast = "foak" in framework[1]
    is_linear_loss = "liger" in framework[1]
    is_flagged = "bf16 flag=True" in notes
    is_old = "tf4.48" not in notes  # 4.45.2 by the notes or, for granite, by its requirements file
    shards = degree(c)
    targets = tuple(name for name in ("q_proj", "k_proj", "v_proj", "o_proj") if name in c["lora"])
    if a.fused_qkv and targets:
        targets = ("qkv_proj", "o_proj") if "c_attn" in c["lora"] else ("o_proj",)
    adapters = None
    if c["lora"]:
        adapters = Adapters(rank=rank(c), targets=targets, dtype="float32")
    kernels = Kernels.FUSED if is_fast else Kernels.EAGER
    # On one GPU, peft's `prepare_model_for_kbit_training` makes what is not quantized float32, and with the embedding
    # the residual stream; fms-acceleration's own plugin does not.
    is_prepared = framework[1].startswith("baseline-peft-bnb") and shards == 1
    is_upcast = c["param_dtype"].startswith("fp32")
    loss = Loss.FUSED_LINEAR if is_linear_loss else Loss.FUSED if is_fast else Loss.SHIFTED
    return Run(
        architecture=a,
        micro_batch=number(c, "micro_batch"),
        length=number(c, "seq"),
        parameter_dtype="float32" if is_upcast or is_prepared else "bfloat16",
        compute_dtype="bfloat16",
        autocast=not is_upcast,
        adapter_autocast=is_flagged,
        optimizer=OptimizerName.ADAMW,
        step=OptimizerImplementation.FOREACH,
        checkpointing=Checkpointing.BLOCK,
        replays_whole=True,
        norm=kernels,
        rotary=kernels,
        loss=loss,
        upcasts_in_model=is_old,
        logits_stay=False,
        adapters=adapters,
        quantization=quantization(c),
        sharding=Sharding.FSDP1 if shards > 1 else Sharding.NONE,
        degrees=Degrees(data=shards),
    )
