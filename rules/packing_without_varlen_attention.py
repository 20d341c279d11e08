"""Packed rows, and an attention that is told their documents by a matrix."""

from collections.abc import Iterator

from planner.configs.config import Config, Setting, report
from planner.configs.facts import Attention, Fact
from planner.diagnostics import Report, Rule, Severity, Source

_ELEMENT_BYTES = 2  # of the mask, which is in the dtype of the computation
# Smaller masks are not worth a word: this is one of 8,192 tokens.
_LEAST_MASK_BYTES = 8192 * 8192 * _ELEMENT_BYTES
_VARLEN_SDPA_SINCE = (0, 18)  # axolotl replaces sdpa on packed rows where torch can


def find(config: Config) -> Iterator[Report]:
    """A report where the mask of a packed row is large."""
    packing, length = config.facts.packing, config.facts.sequence_length
    if packing is None or not packing.value or packing.setting is None or length is None:
        return
    attention = _masked_attention(config)
    mask_bytes = length.value * length.value * _ELEMENT_BYTES
    if attention is None or mask_bytes < _LEAST_MASK_BYTES:
        return
    related: list[tuple[Setting, str]] = [(attention.setting, "the attention")] if attention.setting else []
    scores = ", and a matrix of scores as large for each head" if attention.value is Attention.EAGER else ""
    yield report(
        packing.setting,
        f"packed rows of {length.value:,} tokens with {attention.value} attention need a mask of "
        f"{mask_bytes / 1e9:.2f} GB for each row{scores}; what is between documents is computed and masked",
        help="flash attention takes the documents' lengths instead: "
        + ("attn_implementation: flash_attention_2" if config.dialect.name == "axolotl" else "flash_attn: fa2"),
        related=related,
    )


def _masked_attention(config: Config) -> Fact[Attention] | None:
    """The attention, if it is one that packing makes a mask for."""
    attention = config.facts.attention
    if attention is None and _is_sdpa_by_default(config):
        return Fact(value=Attention.SDPA, setting=config.get("flash_attn"))
    if attention is None or attention.value not in (Attention.EAGER, Attention.SDPA):
        return None
    if config.dialect.name == "llamafactory":
        return attention if config.on("neat_packing") else None  # other packing does not keep documents apart
    is_varlen = config.target >= _VARLEN_SDPA_SINCE and config.value("sdpa_varlen") is not False
    return None if attention.value is Attention.SDPA and is_varlen else attention


def _is_sdpa_by_default(config: Config) -> bool:
    """Whether LLaMA-Factory leaves the choice to transformers, but for Gemma 2, where it looks for flash attention."""
    is_gemma2 = "gemma-2" in str(config.value("model_name_or_path")).lower()
    return config.on("neat_packing") is not None and config.value("flash_attn") == "auto" and not is_gemma2


RULE = Rule(
    code="PK101",
    name="packing-without-varlen-attention",
    severity=Severity.WASTE,
    summary="Long packed rows with an attention that needs a square mask to keep their documents apart.",
    why="Eager and sdpa attention are told by a matrix of tokens by tokens which documents a packed row has. It takes "
    "memory, 2.1 GB at 32,768 tokens in bfloat16; it rules the flash kernel of sdpa out; and it is multiplied in full, "
    "so that packing saves padding and wastes attention.",
    instead="Flash attention, which takes where each document ends.",
    sources=(
        Source(title="LLaMA-Factory 0.9.5", where="llamafactory/data/collator.py, prepare_4d_attention_mask"),
        Source(title="axolotl 0.19.0", where="loaders/patch_manager.py, _apply_sdpa_varlen_patch"),
    ),
    find=find,
    dialects=("axolotl", "llamafactory"),
)
