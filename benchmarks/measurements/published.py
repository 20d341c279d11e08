"""Rows of the general form: one published figure each, with the model's sizes and the settings in words.

A row names a source, and a source a stack: the library versions and kernels its figures were measured with. What a
stack does is written down here once, from its code at the commit the source names; sizes, lengths, ranks and the like
come from the row. What neither says is a refusal, never a guess.
"""

import csv
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.measurements.row import Kind, Row
from planner.architecture import Architecture, Experts, architecture_of, parameter_count
from planner.estimation.blocks import Adapters, AttentionKind, Kernels, Loss
from planner.estimation.run import Degrees, Quantization, Run, Sharding, Step
from planner.estimation.step import Checkpointing
from planner.spec import OptimizerName

_GIB = 2**30
Cells = Mapping[str, str]


class Refused(Exception):
    """The row cannot be expressed; the text says why."""


_KINDS: tuple[tuple[str, Kind], ...] = (
    ("allocated", Kind.ALLOCATED),
    ("active peak", Kind.ALLOCATED),
    ("reserved", Kind.RESERVED),
    ("nvidia-smi", Kind.DEVICE),
    ("as printed", Kind.RESERVED),
    ("fits", Kind.FITS),
    ("OOM", Kind.OOM),
    ("SUSPECT", Kind.ALLOCATED),
)

# Models that rows name without sizes. Sources: the config.json of each on its model page.
_NAMED: Mapping[str, Architecture] = {
    "PowerLM-3b": architecture_of(
        "granite",
        {
            "hidden_size": 2304,
            "intermediate_size": 9216,
            "num_hidden_layers": 40,
            "num_attention_heads": 36,
            "num_key_value_heads": 36,
            "vocab_size": 49152,
            "tie_word_embeddings": True,
        },
    ),
    "santacoder": architecture_of(
        "gpt_bigcode", {"n_embd": 2048, "n_layer": 24, "n_head": 16, "n_positions": 2048, "vocab_size": 49280}
    ),
    "Yi-34B": architecture_of(
        "llama",
        {
            "hidden_size": 7168,
            "intermediate_size": 20480,
            "num_hidden_layers": 60,
            "num_attention_heads": 56,
            "num_key_value_heads": 8,
            "vocab_size": 64000,
        },
    ),
}


def read(path: Path) -> list[Row]:
    """The rows of a file of this form."""
    with path.open(newline="") as file:
        return [_row(cells) for cells in csv.DictReader(file)]


def _row(c: Cells) -> Row:
    kind = next((kind for text, kind in _KINDS if c["mem_kind"].startswith(text)), None)
    source = c["source"].split(":")[0] + (
        "" if ":" not in c["source"] else f":{c['source'].split(':')[1].split(' @')[0]}"
    )
    architecture: Architecture | None = None
    run: Run | None = None
    refusal: str | None = None
    try:
        if kind is None:
            raise Refused(f"mem_kind {c['mem_kind']!r} is not one that is known")
        architecture = architecture_from(c)
        run = _stack_of(c)(c, architecture)
    except Refused as error:
        refusal = str(error)
    return Row(
        id=c["id"],
        source=source,
        kind=kind or Kind.ALLOCATED,
        measured_bytes=round(_figure(c) * _GIB),
        run=run,
        refusal=refusal,
        parameters=parameter_count(architecture) if architecture is not None else 0,
        is_dense=architecture is None or architecture.experts is None,
        label=f"{c['model']} {c['lora'] or 'full'} b{c['micro_batch']} s{c['seq']} x{c['dp_shard']}",
        suspect="SUSPECT" in c["mem_kind"],
    )


def _figure(c: Cells) -> float:
    text = c["reported_mem_gib"].lstrip("<>~ ")
    return float(text) if text else 0.0


def _int(c: Cells, key: str) -> int:
    text = c[key].replace(",", "")
    if not text.isdigit():
        raise Refused(f"{key} is not stated ({c[key]!r})" if text else f"{key} is not stated")
    return int(text)


# -- architectures


def architecture_from(c: Cells) -> Architecture:
    """The architecture that a row's sizes describe."""
    if not c["hidden"]:
        if c["model"] in _NAMED:
            return _NAMED[c["model"]]
        raise Refused(f"the sizes of {c['model']} are not stated")
    arch = c["arch"]
    name = c["model"].lower()
    sizes: dict[str, Any] = {
        "num_hidden_layers": _int(c, "layers"),
        "hidden_size": _int(c, "hidden"),
        "intermediate_size": _int(c, "ffn") if c["ffn"] else 4 * _int(c, "hidden"),
        "num_attention_heads": _int(c, "heads"),
        "num_key_value_heads": _int(c, "kv_heads") if c["kv_heads"] else _int(c, "heads"),
        "vocab_size": _int(c, "vocab") if c["vocab"].isdigit() else 0,
        "tie_word_embeddings": "untied" not in arch and "tied" in arch,
    }
    if "hd256" in arch or name.startswith("gemma-2-"):
        sizes["head_dim"] = 256
    if name.startswith("gemma-2-"):
        return architecture_of("gemma2", sizes)
    if name.startswith("gemma"):
        return architecture_of("gemma", sizes)
    if name.startswith("phi-"):
        return architecture_of("phi", sizes)
    if "neox" in arch:
        return architecture_of("gpt_neox", sizes)
    if name.startswith("falcon"):
        return architecture_of(
            "falcon",
            {
                **sizes,
                "ffn_hidden_size": sizes["intermediate_size"],
                "num_kv_heads": sizes["num_key_value_heads"],
                "new_decoder_architecture": sizes["num_key_value_heads"] > 1,
            },
        )
    if name.startswith("bert"):
        return architecture_of(
            "bert", {**sizes, "vocab_size": sizes["vocab_size"] or 30522, "tie_word_embeddings": True}
        )
    if "MoE" in arch:
        count = re.search(r"(\d+) experts", arch)
        chosen = re.search(r"top(\d+)", arch)
        if count is None:
            raise Refused("the number of experts is not stated")
        return architecture_of(
            "mixtral",
            {**sizes, "num_local_experts": int(count[1]), "num_experts_per_tok": int(chosen[1]) if chosen else 2},
        )
    if arch.startswith("swiglu"):
        return architecture_of("llama", sizes)
    raise Refused(f"the architecture {arch!r} is not one that is known")


# -- stacks


def _degree(c: Cells) -> int:
    found = re.match(r"\d+", c["dp_shard"])
    if found is None:
        raise Refused(f"the number of ranks is not stated ({c['dp_shard']!r})")
    return int(found[0])


def _rank(c: Cells) -> int:
    found = re.search(r"\br(\d+)", c["lora"])
    if found is None:
        raise Refused("the rank of the adapters is not stated")
    return int(found[1])


def _quantization(c: Cells) -> Quantization | None:
    return {
        "nf4": Quantization.NF4,
        "bnb.nf4": Quantization.NF4,
        "bnb.nf4-dq": Quantization.NF4_DOUBLE,
        "int8": Quantization.INT8,
    }.get(c["param_dtype"])


def _fms(c: Cells, a: Architecture) -> Run:
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
    shards = _degree(c)
    targets = tuple(name for name in ("q_proj", "k_proj", "v_proj", "o_proj") if name in c["lora"])
    if a.fused_qkv and targets:
        targets = ("qkv_proj", "o_proj") if "c_attn" in c["lora"] else ("o_proj",)
    adapters = None
    if c["lora"]:
        adapters = Adapters(rank=_rank(c), targets=targets, dtype="float32")
    kernels = Kernels.FUSED if is_fast else Kernels.EAGER
    # On one GPU, peft's `prepare_model_for_kbit_training` makes what is not quantized float32, and with the embedding
    # the residual stream; fms-acceleration's own plugin does not.
    is_prepared = framework[1].startswith("baseline-peft-bnb") and shards == 1
    is_upcast = c["param_dtype"].startswith("fp32")
    loss = Loss.FUSED_LINEAR if is_linear_loss else Loss.FUSED if is_fast else Loss.SHIFTED
    return Run(
        architecture=a,
        micro_batch=_int(c, "micro_batch"),
        length=_int(c, "seq"),
        parameter_dtype="float32" if is_upcast or is_prepared else "bfloat16",
        compute_dtype="bfloat16",
        autocast=not is_upcast,
        adapter_autocast=is_flagged,
        optimizer=OptimizerName.ADAMW,
        step=Step.FOREACH,
        checkpointing=Checkpointing.BLOCK,
        replays_whole=True,
        norm=kernels,
        rotary=kernels,
        loss=loss,
        upcasts_in_model=is_old,
        logits_stay=False,
        adapters=adapters,
        quantization=_quantization(c),
        sharding=Sharding.FSDP1 if shards > 1 else Sharding.NONE,
        degrees=Degrees(data=shards),
    )


_LITGPT_CHUNK = 128  # tokens; `lm_head_chunk_size` and `chunk_size` of its scripts


def _litgpt(c: Cells, a: Architecture) -> Run:
    """litgpt's finetuning scripts: its own model, one matrix for q, k and v, chunked loss in the logits' dtype.

    Sources: Lightning-AI/litgpt at the commits in the notes: lit_gpt/model.py (`CausalSelfAttention.forward`, which
    expands grouped keys and values and joins rotated and plain parts), rmsnorm.py, lora.py (`LoRAQKVLinear`, dropout
    0.05), utils.py `chunked_cross_entropy`, finetune/lora.py; Lightning's BitsandbytesPrecision, which quantizes every
    linear layer.
    """
    if "Adapter" in c["lora"]:
        raise Refused("LLaMA-Adapter's prompts and gates are not described")
    if "inference" in c["optimizer"]:
        raise Refused("inference, not training: see planner kv")
    shards = _degree(c)
    length = re.match(r"<=?(\d+)|(\d+)", c["seq"])
    if length is None:
        raise Refused(f"the length is not stated ({c['seq']!r})")
    tokens = int(length[1] or length[2])
    adapters = None
    if c["lora"]:
        rank = _rank(c)
        adapters = Adapters(rank=rank, targets=("qkv_proj",), dtype="bfloat16", dropout=True)
    micro_batch = _int(c, "micro_batch")
    quantization = {"nf4": Quantization.NF4}.get(c["param_dtype"], _quantization(c))
    return Run(
        architecture=replace(a, fused_qkv=True, partial_rotary=True),
        micro_batch=micro_batch,
        length=tokens,
        parameter_dtype="bfloat16",
        compute_dtype="bfloat16",
        optimizer=OptimizerName.ADAMW,
        checkpointing=Checkpointing.BLOCK if c["ac_mode"].startswith("block") else Checkpointing.NONE,
        attention=AttentionKind.EAGER if a.attention_softcap else AttentionKind.FUSED,
        norm_in_float32=True,
        expands_kv=True,
        loss=Loss.CHUNKED,
        loss_dtype="bfloat16",
        chunks=max(1, micro_batch * tokens // _LITGPT_CHUNK),
        logits_stay=True,
        adapters=adapters,
        quantization=quantization,
        sharding=Sharding.FSDP1 if shards > 1 else Sharding.NONE,
        degrees=Degrees(data=shards),
    )


_STACKS: tuple[tuple[str, Callable[[Cells, Architecture], Run]], ...] = (
    ("foundation-model-stack/fms-acceleration", _fms),
    ("Lightning-AI/litgpt", _litgpt),
)


def _stack_of(c: Cells) -> Callable[[Cells, Architecture], Run]:
    for source, stack in _STACKS:
        if c["source"].startswith(source):
            return stack
    raise Refused(f"the stack of {c['source'].split('@')[0].strip()} is not described")


__all__ = ["AttentionKind", "Experts", "read"]
