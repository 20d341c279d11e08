"""Lightning-AI/litgpt's finetuning scripts: a model of its own, one matrix for q, k and v, the loss in chunks.

Sources, by commit or release:
- tutorials/resource-tables.md (figures of commit 8641822, torch 2.1.0, bitsandbytes 0.41.1) and
  config_hub/finetune/README.md (releases of 2024, bitsandbytes 0.42.0), whose settings are in the YAML files beside it.
- model.py: `CausalSelfAttention.forward` expands grouped keys and values, takes v as a part of the joint result, and
  joins rotated and plain parts; `RMSNorm.forward` computes in float32 and scales before it casts back.
- lora.py: `LoRAQKVLinear` has one matrix of all ranks and pads with `index_copy`; dropout is never 0 in these runs.
- finetune/lora.py, finetune/full.py: logits in chunks of 128 tokens, bound to a name until the next ones are; the
  scripts of the tables give the longest sample to the first micro-batch alone, when there are no earlier ones.
  `FSDPStrategy` with a policy of whole blocks and their checkpoints; `no_backward_sync` while accumulating.
- utils.py: `chunked_cross_entropy`, chunks of 128.
- Lightning 2.1 to 2.4, fabric/plugins/precision/half.py: `convert_output` casts logits to float32;
  bitsandbytes.py: every linear layer is quantized, the output matrix too, from float16; fabric/strategies/fsdp.py:
  use_orig_params.
- bitsandbytes 0.41.1 and 0.42.0, autograd/_functions.py: `MatMul4Bit` keeps its input.
- litgpt's checkpoint conversion copies a tied embedding into an output matrix of its own.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from benchmarks.measurements.cells import Cells, Refused, degree, number, quantization, rank
from planner.architecture import Architecture
from planner.estimation.blocks import Adapters, AttentionKind, Loss
from planner.estimation.run import Degrees, Run, Sharding
from planner.estimation.step import Checkpointing
from planner.spec import OptimizerName

_CHUNK = 128  # tokens of a sequence; `lm_head_chunk_size`, and the default of `chunked_cross_entropy`
_QV, _QKV = ("q", "v"), ("q", "k", "v")
_ALL = ("qkv_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head")


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    """What a YAML file of config_hub/finetune says beyond its row.

    Attributes:
        rank: `lora_r`.
        is_everywhere: `lora_key`, `lora_projection`, `lora_mlp` and `lora_head` are true.
        devices, global_batch: of full finetuning; they decide whether gradients accumulate.
    """

    rank: int = 0
    is_everywhere: bool = False
    devices: int = 1
    global_batch: int = 0


# Read at the last commits of 2024 that change each file. Rows say "r32 q,v" for all of them.
_FILES: Mapping[str, _File] = {
    "gemma-2b/lora.yaml": _File(rank=8, is_everywhere=True),
    "gemma-2b/qlora.yaml": _File(rank=16, is_everywhere=True),
    "gemma-7b/lora.yaml": _File(rank=16, is_everywhere=True),
    "gemma-7b/qlora.yaml": _File(rank=16, is_everywhere=True),
    "gemma2-2b/lora.yaml": _File(rank=8, is_everywhere=True),
    "gemma2-9b/lora.yaml": _File(rank=8, is_everywhere=True),
    "gemma2-9b/qlora.yaml": _File(rank=8, is_everywhere=True),
    "phi-2/lora.yaml": _File(rank=8, is_everywhere=True),
    "phi-2/full.yaml": _File(devices=2, global_batch=8),
    "gemma-2b/full.yaml": _File(devices=4, global_batch=16),
}
_ACCUMULATES_IN_TABLES = True  # "minibatch size of 128" over micro-batches of at most 4


def run_of(c: Cells, a: Architecture) -> Run:
    """A run of litgpt's scripts."""
    if "Adapter" in c["lora"]:
        raise Refused("LLaMA-Adapter's prompts and gates are not described")
    if "inference" in c["optimizer"]:
        raise Refused("inference, not training")
    file = re.match(r"[\w.-]+/[\w-]+\.yaml", c["notes"])
    said = _FILES.get(file[0], _File()) if file is not None else _File()
    shards, micro_batch, tokens = degree(c), number(c, "micro_batch"), _length(c)
    accumulates = _ACCUMULATES_IN_TABLES
    if said.global_batch:
        shards = said.devices
        accumulates = said.global_batch // said.devices > micro_batch
    is_sharded = shards > 1
    return Run(
        architecture=_as_litgpt_builds(a),
        micro_batch=micro_batch,
        length=tokens,
        parameter_dtype="bfloat16",
        compute_dtype="bfloat16",
        optimizer=OptimizerName.ADAMW,
        accumulates=accumulates,
        checkpointing=Checkpointing.BLOCK if c["ac_mode"].startswith("block") else Checkpointing.NONE,
        attention=AttentionKind.EAGER if a.attention_softcap else AttentionKind.FUSED,
        norm_in_float32=True,
        expands_kv=True,
        loss=Loss.CHUNKED,
        loss_dtype="float32",
        chunks=-(-tokens // _CHUNK),
        upcasts_in_model=True,
        logits_stay=True,
        adapters=_adapters(c, said),
        quantization=quantization(c),
        quantizes_head=True,
        quantized_saves_input=True,
        quantized_from="float16",
        outputs_linger="resource-tables" not in c["source"],
        sharding=Sharding.FSDP1 if is_sharded else Sharding.NONE,
        flat_gradients=is_sharded,
        defers_reduction=is_sharded and accumulates,
        degrees=Degrees(data=shards),
    )


def _length(c: Cells) -> int:
    """Tokens of the longest sample; where it is only said to be below a limit, the limit."""
    found = re.match(r"(?:<=)?(\d+)", c["seq"])
    if found is None:
        raise Refused(f"the length is not stated ({c['seq']!r})")
    return int(found[1])


def _as_litgpt_builds(a: Architecture) -> Architecture:
    activation = "gelu_pytorch_tanh" if a.activation == "gelu_new" else a.activation  # one kernel, F.gelu
    return replace(a, fused_qkv=True, partial_rotary=True, tied=False, activation=activation)


def _adapters(c: Cells, said: _File) -> Adapters | None:
    if not c["lora"]:
        return None
    if said.is_everywhere:
        return Adapters(rank=said.rank, targets=_ALL, dtype="bfloat16", dropout=True, parts=_QKV)
    return Adapters(rank=rank(c), targets=("qkv_proj",), dtype="bfloat16", dropout=True, parts=_QV)
