"""pytorch/torchtune's recipes: models of its own in bfloat16, checkpoints without reentrance.

Sources, by release:
- 0.1.1 (May 2024): recipes/{full,lora}_finetune_single_device.py and lora_finetune_distributed.py: logits are made
  float32 in the model, shifted by a contiguous copy, and stay bound to a name; recipes/configs/llama2/*.yaml: adapters
  of rank 8, FSDP with `lora_fsdp_wrap_policy`, which wraps what is trained by itself; modules/rms_norm.py.
- 0.5.0 (December 2024): modules/transformer.py (`.float()` on the output), modules/rms_norm.py (`F.rms_norm` of
  float32), modules/attention_utils.py (flex attention for packed sequences); recipes delete logits before backward.
- modules/peft/lora.py: quantized bases go through torchao's `linear_nf4`; that its scales are quantized, too, is
  an assumption.
"""

from benchmarks.measurements.cells import Cells, Refused, degree, number
from planner.architecture import Architecture
from planner.estimation.blocks import Adapters, Loss
from planner.estimation.run import Degrees, Run, Sharding
from planner.estimation.step import Checkpointing
from planner.spec import OptimizerName, QuantizationName

_QV = ("q_proj", "v_proj")
_ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
_RANK = 8  # llama2/7B_lora*.yaml, 7B_qlora_single_device.yaml
_PAGED = "Paged"  # bitsandbytes holds such state outside of PyTorch's allocator: functional.py, `get_paged`


def run_of(c: Cells, a: Architecture) -> Run:
    """A run of torchtune's recipes."""
    if c["compile"] == "yes":
        raise Refused("torch.compile chooses what is saved and which ops are one; that is not described")
    if "init only" in c["lora"]:
        raise Refused("the model's loading, not a step")
    if "var" in c["seq"] or "variable length" in c["notes"]:
        raise Refused("the lengths of the samples are not stated")
    if "disputed" in c["notes"]:
        raise Refused("people measured from 20.2 to 24.1 GB with these settings; what differed is not known")
    if not c["optimizer"]:
        raise Refused("the optimizer is not stated")
    is_old = "2024-05" in c["source"]
    if not is_old and c["lora"]:
        raise Refused("the adapters' settings are not stated")
    shards, is_quantized = degree(c), c["param_dtype"] == "nf4"
    adapters = None
    if c["lora"]:
        adapters = Adapters(rank=_RANK, targets=_ALL if is_quantized else _QV, dtype="bfloat16")
    return Run(
        architecture=a,
        micro_batch=number(c, "micro_batch"),
        length=number(c, "seq"),
        parameter_dtype="bfloat16",
        compute_dtype="bfloat16",
        optimizer=OptimizerName.ADAMW_8BIT if "8bit" in c["optimizer"] else OptimizerName.ADAMW,
        in_backward="in-b" in c["optimizer"],
        accumulates=adapters is not None,
        checkpointing=Checkpointing.NONE if c["ac_mode"] == "none" else Checkpointing.BLOCK,
        norm_in_float32=not is_old,
        expands_kv=True,
        loss=Loss.SHIFTED if is_old else Loss.FULL,
        upcasts_in_model=True,
        logits_stay=is_old,
        outputs_linger=is_old,
        adapters=adapters,
        quantization=QuantizationName.NF4_DOUBLE if is_quantized else None,
        sharding=Sharding.FSDP1 if shards > 1 else Sharding.NONE,
        degrees=Degrees(data=shards),
        offloads_optimizer=_PAGED in c["optimizer"],
    )
