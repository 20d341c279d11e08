"""What a GPT-NeoX config asks for. A run reads several files, so what this one does not say is not known."""

from planner.configs.config import Config, Setting
from planner.configs.facts import Attention, Checkpointing, Fact, Facts, Loss, Sharding
from planner.linting.dialects import simple_facts

_STAGES = (Sharding.NONE, Sharding.OPTIMIZER, Sharding.GRADIENTS, Sharding.PARAMETERS)
_DTYPES = {"bfloat16": "bfloat16", "fp16": "float16", "fp32": "float32"}
_KINDS = {"global": Attention.EAGER, "flash": Attention.FLASH}


def read(config: Config) -> Facts:
    """The training facts of a GPT-NeoX config."""
    facts = {name: fact for name, fact in simple_facts(config).items() if fact.setting is not None}
    checkpointing = config.get("checkpoint_activations")
    if checkpointing is not None and isinstance(checkpointing.value, bool):
        mode = Checkpointing.FULL if checkpointing.value else Checkpointing.NONE
        facts["checkpointing"] = Fact(value=mode, setting=checkpointing)
    stage = config.get("zero_optimization.stage")
    number = None if stage is None else stage.value
    if type(number) is int and 0 <= number < len(_STAGES):
        facts["sharding"] = Fact(value=_STAGES[number], setting=stage)
    return Facts(
        **facts,
        attention=_attention(config.get("attention_config")),
        compute_dtype=_compute_dtype(config),
        reentrant=Fact(value=True),  # DeepSpeed's checkpoint
        loss=Fact(value=Loss.FULL),
    )


def _attention(setting: Setting | None) -> Fact[Attention] | None:
    """The kind of attention, where all layers have the same."""
    names = set(_texts(setting.value)) - {"all"} if setting is not None else set()
    if len(names) != 1:
        return None
    return Fact(value=_KINDS.get(names.pop(), Attention.OTHER), setting=setting)


def _texts(value: object) -> list[str]:
    """The texts in lists of lists."""
    if isinstance(value, str):
        return [value]
    return [text for item in value for text in _texts(item)] if isinstance(value, list) else []


def _compute_dtype(config: Config) -> Fact[str] | None:
    precision = config.first("precision", "fp16.type")
    if precision is not None and isinstance(precision.value, str) and precision.value in _DTYPES:
        return Fact(value=_DTYPES[precision.value], setting=precision)
    for switch, dtype in (("bf16.enabled", "bfloat16"), ("fp16.enabled", "float16")):
        setting = config.on(switch)
        if setting is not None:
            return Fact(value=dtype, setting=setting)
    return None
