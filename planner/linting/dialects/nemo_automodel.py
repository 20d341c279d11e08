"""What a recipe of NeMo Automodel asks for."""

from planner.configs.config import Config
from planner.configs.facts import Attention, Checkpointing, Fact, Facts, Loss, Sharding
from planner.linting.dialects import simple_facts

# nemo_automodel/recipes/_dist_utils.py, _normalize_activation_checkpointing, 0.7.0
_CHECKPOINTING: dict[object, Checkpointing] = {
    **dict.fromkeys((False, None, "false", "off", "none", "disabled", "no"), Checkpointing.NONE),
    **dict.fromkeys((True, "true", "on", "full", "enabled", "yes"), Checkpointing.FULL),
    "selective": Checkpointing.SELECTIVE,
}
_ATTENTION = {
    "eager": Attention.EAGER,
    "sdpa": Attention.SDPA,
    "flash_attention_2": Attention.FLASH,
    "flash_attention_3": Attention.FLASH,
    "flex": Attention.FLEX,
    "flex_attention": Attention.FLEX,
    "te": Attention.OTHER,
}


def read(config: Config) -> Facts:
    """The training facts of a recipe."""
    facts = simple_facts(config)
    checkpointing = config.get("distributed.activation_checkpointing")
    value = checkpointing.value if checkpointing is not None else None
    kind = _CHECKPOINTING.get(value.lower() if isinstance(value, str) else value) if not _is_nested(value) else None
    if kind is not None and config.get("distributed") is not None:
        facts["checkpointing"] = Fact(value=kind, setting=checkpointing)
    attention = config.first("model.backend.attn", "model.attn_implementation")
    if attention is not None and str(attention.value) in _ATTENTION:
        facts["attention"] = Fact(value=_ATTENTION[str(attention.value)], setting=attention)
    packed = config.get("packed_sequence.packed_sequence_size")
    if packed is not None and isinstance(packed.value, int):
        facts["packing"] = Fact(value=packed.value > 0, setting=packed)
    loss = config.get("loss_fn._target_")
    if loss is not None:
        is_fused = "FusedLinearCrossEntropy" in str(loss.value)
        facts["loss"] = Fact(value=Loss.FUSED if is_fused else Loss.FULL, setting=loss)
    strategy = config.value("distributed.strategy")
    if strategy == "fsdp2" and config.get("distributed") is not None:
        facts["sharding"] = Fact(value=Sharding.PARAMETERS, setting=config.get("distributed.strategy"))
    return Facts(**facts)


def _is_nested(value: object) -> bool:
    return isinstance(value, dict | list)
