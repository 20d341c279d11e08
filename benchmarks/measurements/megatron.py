"""Rows of Megatron-LM's functional tests: the memory their golden values record, and the settings they ran with.

A row has the settings of its test in columns; what has no column is in the test's name, and the rest is the same for
all tests or Megatron's default. A golden value is of the last rank, and so of the pipeline's last stage. What neither
the columns nor the name say is a refusal, never a guess.

Source: Megatron-LM at commit d98e8a6, tests/functional_tests/test_cases, each test's model_config.yaml, and
megatron/training/arguments.py for defaults.
"""

import csv
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from benchmarks.measurements.cells import Cells, Refused
from benchmarks.measurements.row import Kind, Row
from planner.architecture import Architecture, Experts, LatentAttention, Norm, Positions, parameter_count
from planner.costs.reserved import CUBLAS_THREADS, CUBLAS_WORKSPACE_BYTES, HOPPER_CUBLAS_WORKSPACE_BYTES, MIB
from planner.errors import PlannerError
from planner.estimation.blocks import AttentionKind, Implementation, Kernels, Loss
from planner.estimation.parallel import check_degrees
from planner.estimation.run import Degrees, Run, Sharding
from planner.estimation.step import Checkpointing
from planner.spec import OptimizerImplementation, OptimizerName
from planner.units import DTYPE_BYTES

# Vocabularies of the tokenizers; NullTokenizer's is in the row.
_VOCABULARIES: Mapping[str, int] = {"GPT2BPE": 50257}
# `--make-vocab-size-divisible-by`, times the tensor-parallel ranks.
_VOCABULARY_MULTIPLE = 128

# Source: Transformer Engine, pytorch/module/base.py, `get_cublas_workspace_size_bytes`.
_TE_BYTES, _TE_HOPPER_BYTES = 4 * MIB, 32 * MIB
_HOPPER_OR_LATER = ("h100", "gb200")
# Experts' products run on as many streams, each with a workspace: `get_multi_stream_cublas_workspace` there.
_TE_STREAMS = 4
# Tests of which the configuration leaves cuBLAS's workspace alone; of dense models, also those that share sequences.
_NONDETERMINISTIC = ("nondeterministic", "cross_entropy_loss_fusion", "_reshard_1x4", "_reshard_8x1")
# Tests of experts that run in one kernel, whose names do not all say it.
_GROUPED = ("groupedGEMM", "_etp1_ep4", "_ep8_", "_tp4_ep2_etp2_")

# What keeps a test from being expressed: a part of its name, and why.
_OTHER: tuple[tuple[str, str], ...] = (
    ("multimodal", "a vision encoder beside the language model"),
    ("bert", "Megatron's BERT, with heads of its own"),
    ("nemotron", "state-space layers between those of attention"),
    ("grpo", "reinforcement learning: inference and several models"),
    ("distill", "a teacher beside the model"),
    ("offloading", "activations that are offloaded in parts"),
    ("cudagraph", "private pools of CUDA graphs"),
    ("a2a_ovlp", "two micro-batches at once, to hide exchanges"),
    ("ep_overlap", "two micro-batches at once, to hide exchanges"),
    ("tp_overlap", "buffers of overlapped tensor parallelism"),
    ("zp_z3", "Megatron's own FSDP"),
    ("ep4_etp1_memory_speed", "multi-token prediction"),
    ("selective_recompute_experimental", "multi-token prediction"),
    ("defer_embedding", "the output matrix's gradient is put off"),
    ("dist_muon", "an optimizer that is divided by layers"),
)


def read(path: Path) -> list[Row]:
    """The rows of the file, in its order.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open(newline="") as file:
        return [_row(place, cells) for place, cells in enumerate(csv.DictReader(file))]


def read_general(path: Path) -> list[Row]:
    """The rows of the general form that are golden values of these tests, in the file's order.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open(newline="") as file:
        found = [cells for cells in csv.DictReader(file) if cells["mem_kind"].startswith(_GENERAL_KIND)]
    return [replace(_row(0, _from_general(cells)), id=cells["id"]) for cells in found]


_GENERAL_KIND = "allocated (rank world-1"


def _from_general(c: Cells) -> dict[str, str]:
    """The columns of this form, from those of the general one and its notes."""
    notes = re.search(r"bytes (\d+);.*GBS (\d*) EP (\d+) VPP (\d*) env (\S*);", c["notes"])
    assert notes is not None
    name = c["model"].removeprefix("golden:")
    experts = re.search(r"MoE (\d+) experts", c["arch"])
    is_local = "local" in c["attention"] or "/gpt3_mcore_tp" in name
    return {
        "name": name,
        "plat": c["gpu"],
        "world": c["dp_shard"].removeprefix("world ").replace("?", ""),
        **{key: c[key] for key in ("layers", "hidden", "heads", "ffn", "seq", "tp", "pp", "cp", "sp")},
        "kv": c["kv_heads"],
        "swiglu": str("swiglu" in c["arch"]),
        "tok": c["vocab"],
        "vocab": c["vocab"] if c["vocab"].isdecimal() else "",
        "untie": str("untied" in c["arch"]),
        "mbs": c["micro_batch"],
        "distopt": str("distributed" in c["optimizer"]),
        "recompute": "" if c["ac_mode"] == "none" else c["ac_mode"].split()[0],
        "impl": "local" if is_local else "transformer_engine",
        "dtype": c["param_dtype"].split()[0],
        "fp8": next((kind for kind in ("hybrid", "e4m3") if kind in c["param_dtype"]), ""),
        "experts": experts[1] if experts else "",
        "attn": "" if c["attention"] == "TE auto" else c["attention"],
        "fsdp": str("fsdp" in name),
        "dropout": "",
        "optimizer": "muon" if c["optimizer"].startswith("muon") else "",
        **dict(zip(("mem_max", "gbs", "ep", "vpp", "env"), notes.groups(), strict=True)),
    }


def _row(place: int, cells: Cells) -> Row:
    run, refusal = None, None
    try:
        run = _run(cells)
        check_degrees(run)
    except (Refused, PlannerError) as error:
        run, refusal = None, str(error)
    label = f"{cells['name']} {cells['env']} {cells['plat']}"
    return Row(
        id=f"megatron-{place}",
        source="NVIDIA/Megatron-LM",
        kind=Kind.ALLOCATED,
        measured_bytes=round(float(cells["mem_max"])),
        run=run,
        refusal=refusal,
        parameters=parameter_count(run.architecture) if run is not None else 0,
        is_dense=not cells["experts"],
        label=label,
    )


def _refusals(cells: Cells) -> Iterator[str]:
    name = cells["name"]
    yield from (reason for part, reason in _OTHER if part in name)
    if cells["fp8"]:
        yield "FP8"
    if cells["fsdp"] == "True":
        yield "Megatron's own FSDP"
    if cells["dtype"] not in ("bf16", "fp16"):
        yield "no precision in the row"
    if not cells["impl"]:
        yield "whose layers is not in the row"
    if not cells["world"]:
        yield "how many ranks is not in the row"
    if cells["tok"] not in _VOCABULARIES and not cells["vocab"]:
        yield f"the vocabulary of {cells['tok']} is not in the row"
    if cells["recompute"] == "selective":
        yield "which parts are recomputed is not in the row"
    is_older = cells["env"] != "dev" or "dracooci" in cells["plat"] or not cells["env"]
    if not cells["attn"] and cells["impl"] != "local" and is_older:
        yield "older than its configuration, which has since left the attention kernel to the library"


def _run(cells: Cells) -> Run:
    for reason in _refusals(cells):
        raise Refused(reason)
    name = cells["name"]
    a = _architecture(cells)
    number = {key: int(cells[key] or 1) for key in ("world", "tp", "pp", "cp", "ep", "mbs", "gbs", "seq")}
    ranks = number["tp"] * number["pp"] * number["cp"]
    data = number["world"] // ranks
    if number["gbs"] % (number["mbs"] * max(1, data)):
        batches = f"a global batch of {number['gbs']} is not made of micro-batches of {number['mbs']}"
        raise Refused(f"{batches} on {data} data-parallel ranks")
    compute = {"bf16": "bfloat16", "fp16": "float16"}[cells["dtype"]]
    chunk_layers = int(cells["vpp"] or 0)
    virtual = a.layers // (number["pp"] * chunk_layers) if chunk_layers and number["pp"] > 1 else 1
    if stage_layers := _stage_layers(name):
        virtual = len(stage_layers) // number["pp"]
    instances = 2 if "multi_dist_optimizer_instances" in name else 1  # --num-distributed-optimizer-instances
    is_eager = cells["impl"] == "local" or cells["attn"] in ("unfused", "local")
    is_fused_kernel = not is_eager and not cells["attn"] and "h100" in cells["plat"]
    return Run(
        architecture=a,
        implementation=Implementation.MEGATRON,
        micro_batch=number["mbs"],
        length=number["seq"],
        parameter_dtype=compute,
        compute_dtype=compute,
        # `accumulate_allreduce_grads_in_fp32` comes with --bf16 alone.
        gradient_dtype="float32" if compute == "bfloat16" else compute,
        autocast=False,
        master_dtype="float32",
        optimizer=OptimizerName.MUON if cells["optimizer"] == "muon" else OptimizerName.ADAMW,
        step=OptimizerImplementation.FUSED,
        gradients_persist=True,
        checkpointing=Checkpointing.BLOCK if cells["recompute"] == "full" else Checkpointing.NONE,
        attention=AttentionKind.EAGER if is_eager else AttentionKind.FUSED,
        # cuDNN's kernel reads and writes [sequence, batch, heads]; flash-attention's does not. On Hopper Transformer
        # Engine prefers cuDNN's; before it, it cannot have it where algorithms are to be deterministic.
        # Source: pytorch/attention/dot_product_attention/utils.py, `get_attention_backend`. That Blackwell is like
        # Ampere here is a conclusion from the golden values, not from that code.
        copies_attention_output=not is_eager and not is_fused_kernel,
        norm=Kernels.FUSED,
        activation=Kernels.FUSED,
        rotary=Kernels.FUSED,
        loss=Loss.FUSED if "cross_entropy_loss_fusion" in name else Loss.FULL,
        logits_stay=False,
        sharding=Sharding.ZERO1 if cells["distopt"] == "True" else Sharding.NONE,
        degrees=Degrees(
            data=data // instances,
            replicas=instances,
            tensor=number["tp"],
            sequence=cells["sp"] == "True" and number["tp"] > 1,
            context=number["cp"],
            pipeline=number["pp"],
            virtual=virtual,
            expert=number["ep"],
            expert_tensor=_expert_tensor(name),
        ),
        micro_batches=max(1, number["gbs"] // (number["mbs"] * data)),
        micro_batch_group=5 if "tunable_overlap" in name else None,
        stage=number["pp"] - 1,
        stage_layers=stage_layers,
        workspace_bytes=_workspace_bytes(cells, a, compute),
    )


def _expert_tensor(name: str) -> int | None:
    return next((ranks for ranks in (1, 2, 4) if f"etp{ranks}" in name), None)


# Tests that say how many layers each chunk of the pipeline has; in the second, embedding and loss count as a layer.
# Source: their configurations, --decoder-first-pipeline-num-layers and --account-for-embedding-in-pipeline-split.
_STAGE_LAYERS: Mapping[str, tuple[int, ...]] = {
    "uneven_pipeline": (2, 4, 4, 2),
    "account_for_embedding_loss": (0, 1, 1, 1, 1, 1, 1, 0),
}


def _stage_layers(name: str) -> tuple[int, ...]:
    return next((layers for part, layers in _STAGE_LAYERS.items() if part in name), ())


def _architecture(cells: Cells) -> Architecture:
    name = cells["name"]
    hidden, heads = int(cells["hidden"]), int(cells["heads"])
    is_gated = cells["swiglu"] == "True"
    # `--ffn-hidden-size` is 4 × hidden, or two thirds of that, in multiples of 64, with a gate.
    ffn = int(cells["ffn"] or (hidden * 4 * 2 // 3 // 64 * 64 if is_gated else hidden * 4))
    vocab = int(cells["vocab"] or _VOCABULARIES.get(cells["tok"], 0))
    multiple = _VOCABULARY_MULTIPLE * int(cells["tp"])
    has_dropout = cells["dropout"] != "0.0"
    has_rotary = "rope" in name
    has_bias = "disable_bias_linear" not in name and not cells["experts"]
    latent = None
    if "mla" in name:
        latent = LatentAttention(kv_rank=64, q_rank=192, rope_width=8, plain_width=16, value_width=16)
    return Architecture(
        family="megatron",
        layers=int(cells["layers"]),
        hidden=hidden,
        heads=heads,
        kv_heads=int(cells["kv"]),
        head_width=hidden // heads if latent is None else latent.value_width,
        ffn=ffn,
        vocab=-(-vocab // multiple) * multiple,
        gated=is_gated,
        fused_gate=is_gated,
        activation="silu" if is_gated else "gelu",
        norm=Norm.LAYER,
        tied=cells["untie"] != "True",
        positions=Positions.ROPE if has_rotary else Positions.LEARNED,
        max_positions=int(cells["seq"]),
        attention_bias=has_bias,
        output_bias=has_bias,
        mlp_bias=has_bias,
        fused_qkv=True,
        qk_norm="qk_layernorm" in name,
        dropout=0.1 if has_dropout else 0.0,
        attention_dropout=0.1 if has_dropout else 0.0,
        experts=_experts(cells, ffn),
        latent=latent,
    )


def _experts(cells: Cells, ffn: int) -> Experts | None:
    """Tests with Sinkhorn routing send each token to one expert, the others to two."""
    if not cells["experts"]:
        return None
    name = cells["name"]
    is_one = "2parallel" in name and "top2router" not in name
    is_small = any(part in name for part in ("_ep8_", "_tp4_ep2_etp2_"))
    return Experts(
        count=int(cells["experts"]),
        chosen=1 if is_one else 2,
        ffn=1024 if is_small else ffn,
        shared_ffn=512 if "_tp4_ep2_etp2_" in name else 0,
    )


def _workspace_bytes(cells: Cells, a: Architecture, compute: str) -> int:
    """Workspaces of cuBLAS and Transformer Engine, the attention mask, and Megatron's global buffer.

    Source of the buffers: Megatron-LM, core/utils.py, `GlobalMemoryBuffer`; core/datasets/gpt_dataset.py,
    `create_attention_mask`.
    """
    is_hopper = "h100" in cells["plat"]
    is_hopper_or_later = any(part in cells["plat"] for part in _HOPPER_OR_LATER)
    leaves = any(part in cells["name"] for part in _NONDETERMINISTIC)
    is_deterministic = not leaves and (bool(cells["experts"]) or cells["cp"] == "1")
    # CUBLAS_WORKSPACE_CONFIG=:4096:8, which deterministic runs need, makes as much as there is on Hopper: 4096 KiB × 8.
    is_large = is_hopper or is_deterministic
    total = CUBLAS_THREADS * (HOPPER_CUBLAS_WORKSPACE_BYTES if is_large else CUBLAS_WORKSPACE_BYTES)
    if cells["impl"] == "transformer_engine":
        streams = _TE_STREAMS if any(part in cells["name"] for part in _GROUPED) else 0
        total += (1 + streams) * (_TE_HOPPER_BYTES if is_hopper_or_later else _TE_BYTES)
    else:  # scores of one layer, in a buffer that stays
        width = DTYPE_BYTES[compute]
        total += round(int(cells["mbs"]) * a.heads // int(cells["tp"]) * int(cells["seq"]) ** 2 * width)
    return total
