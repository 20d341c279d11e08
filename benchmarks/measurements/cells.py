"""The cells of one row: numbers that are stated, or a refusal, and the architecture that they describe."""

import re
from collections.abc import Mapping
from typing import Any

from planner.architecture import Architecture
from planner.families import MOST_LAYERS, ConfigError, architecture_of
from planner.spec import QuantizationName

Cells = Mapping[str, str]


class Refused(Exception):  # noqa: N818 - an answer, not an error
    """The row cannot be expressed; the text says why."""


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


def number(c: Cells, key: str) -> int:
    """A whole number that the row states.

    Raises:
        Refused: it does not.
    """
    text = c[key].replace(",", "").strip()
    if not text.isdecimal() or int(text) == 0:
        raise Refused(f"{key} is not stated ({c[key]!r})" if text else f"{key} is not stated")
    return int(text)


# -- architectures


def architecture_from(c: Cells) -> Architecture:
    """The architecture that a row's sizes describe.

    Raises:
        Refused: they are not stated, or not of a kind that is known.
    """
    if not c["hidden"]:
        if c["model"] in _NAMED:
            return _NAMED[c["model"]]
        raise Refused(f"the sizes of {c['model']} are not stated")
    try:
        return _described(c)
    except ConfigError as error:
        raise Refused(f"the sizes of {c['model']} contradict each other: {error}") from None


def _described(c: Cells) -> Architecture:
    arch, name = c["arch"], c["model"].lower()
    if number(c, "layers") > MOST_LAYERS:
        raise Refused(f"more than {MOST_LAYERS:,} layers ({c['layers']!r})")
    is_bert = name.startswith("bert")
    sizes: dict[str, Any] = {
        "num_hidden_layers": number(c, "layers"),
        "hidden_size": number(c, "hidden"),
        "intermediate_size": number(c, "ffn") if c["ffn"] else 4 * number(c, "hidden"),
        "num_attention_heads": number(c, "heads"),
        "num_key_value_heads": number(c, "kv_heads") if c["kv_heads"] else number(c, "heads"),
        "vocab_size": _BERT_VOCAB if is_bert and not c["vocab"] else number(c, "vocab"),
        "tie_word_embeddings": is_bert or ("untied" not in arch and "tied" in arch),
    }
    if "hd256" in arch or name.startswith("gemma-2-"):
        sizes["head_dim"] = 256
    if "MPT" in arch:
        return _mpt(c, sizes)
    if "MoE" in arch:
        return architecture_of("mixtral", {**sizes, **_experts(arch)})
    if name.startswith("falcon"):
        sizes["ffn_hidden_size"] = sizes["intermediate_size"]
        sizes["num_kv_heads"] = sizes["num_key_value_heads"]
        sizes["new_decoder_architecture"] = sizes["num_key_value_heads"] > 1
    for start, family in _FAMILIES:
        if name.startswith(start):
            return architecture_of(family, sizes)
    if "neox" in arch:
        return architecture_of("gpt_neox", sizes)
    if arch.startswith("swiglu"):
        return architecture_of("llama", sizes)
    raise Refused(f"the architecture {arch!r} is not one that is known")


_BERT_VOCAB = 30522  # bert-large-uncased's config.json
_FAMILIES = (("gemma-2-", "gemma2"), ("gemma", "gemma"), ("phi-", "phi"), ("falcon", "falcon"), ("bert", "bert"))


def _experts(arch: str) -> Mapping[str, int]:
    count, chosen = re.search(r"(\d+) experts", arch), re.search(r"top(\d+)", arch)
    if count is None or chosen is None:
        raise Refused("how many experts there are, or how many a token has, is not stated")
    return {"num_local_experts": int(count[1]), "num_experts_per_tok": int(chosen[1])}


def _mpt(c: Cells, sizes: Mapping[str, Any]) -> Architecture:
    """MPT as llm-foundry trains it: one matrix for q, k and v, learned positions as many as tokens, no dropout.

    The parameters that rows state grow with the length as such a table does, and have every bias.

    Source: the rows' own counts of parameters, which this reproduces within 0.03%.
    """
    config = {
        "n_embd": sizes["hidden_size"],
        "n_layer": sizes["num_hidden_layers"],
        "n_head": sizes["num_attention_heads"],
        "n_inner": sizes["intermediate_size"],
        "vocab_size": sizes["vocab_size"],
        "n_positions": number(c, "seq"),
        "activation_function": "gelu",
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
    }
    return architecture_of("gpt2", config)


# -- settings


def degree(c: Cells) -> int:
    """The ranks that share what data parallelism shares."""
    found = re.match(r"[1-9]\d*", c["dp_shard"])
    if found is None:
        raise Refused(f"the number of ranks is not stated ({c['dp_shard']!r})")
    return int(found[0])


def rank(c: Cells) -> int:
    """The rank of the adapters."""
    found = re.search(r"\br([1-9]\d*)", c["lora"])
    if found is None:
        raise Refused("the rank of the adapters is not stated")
    return int(found[1])


_QUANTIZATIONS: Mapping[str, QuantizationName] = {
    "nf4": QuantizationName.NF4,
    "bnb.nf4": QuantizationName.NF4,
    "bnb.nf4-dq": QuantizationName.NF4_DOUBLE,
    "int8": QuantizationName.INT8,
}


def quantization(c: Cells) -> QuantizationName | None:
    """How the frozen base is held, if it is quantized."""
    return _QUANTIZATIONS.get(c["param_dtype"])
