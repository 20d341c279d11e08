"""What a torchtune config asks for.

Which recipe will read a config does not stand in it, and recipes differ. What some recipes do not read is a fact only
where the config is for one that does.
"""

from planner.configs.config import Config
from planner.configs.facts import Checkpointing, Fact, Facts, Loss
from planner.linting.dialects import simple_facts

_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp64": "float64"}
_QLORA_BITS = 4  # NF4
# Keys of configs for distillation and reinforcement learning: those recipes read neither enable_activation_offloading
# nor, but for PPO, optimizer_in_bwd (0.6.1).
_OTHER_RECIPES = ("teacher_model", "policy_model", "grpo_samples", "orchestration")


def read(config: Config) -> Facts:
    """The training facts of a torchtune config."""
    facts = simple_facts(config)
    model, optimizer, loss = (_component(config, key) for key in ("model", "optimizer", "loss"))
    builder = model.value.rpartition(".")[2] if model is not None else ""
    is_lora = builder.startswith(("lora_", "qlora_", "dora_"))
    if model is not None:
        facts["model"] = model
        facts["lora"] = Fact(value=is_lora, setting=model.setting)
        quantized = config.on("model.quantize_base")
        if quantized is not None or builder.startswith("qlora_"):
            facts["quantization_bits"] = Fact(value=_QLORA_BITS, setting=quantized or model.setting)
    if optimizer is not None:
        facts["optimizer"] = optimizer
        if optimizer.value.endswith("CPUOffloadOptimizer"):
            facts["optimizer_offload"] = Fact(value=True, setting=optimizer.setting)
        elif "parameter_offload" in facts:
            facts["optimizer_offload"] = facts["parameter_offload"]
    if config.first(*_OTHER_RECIPES) is not None:
        facts.pop("activation_offload", None)
    elif not is_lora and config.get("optimizer_in_bwd") is not None:
        in_backward = config.get("optimizer_in_bwd")
        facts["optimizer_in_backward"] = Fact(value=config.on("optimizer_in_bwd") is not None, setting=in_backward)
    dtype = config.get("dtype")
    if dtype is not None and isinstance(dtype.value, str) and dtype.value in _DTYPES:
        facts["compute_dtype"] = facts["parameter_dtype"] = Fact(value=_DTYPES[dtype.value], setting=dtype)
    compiled = config.get("compile")
    if compiled is None or isinstance(compiled.value, bool):
        facts["compile"] = Fact(value=compiled is not None and compiled.value is True, setting=compiled)
    return Facts(
        **facts,
        checkpointing=_checkpointing(config),
        reentrant=Fact(value=False),
        loss=None if loss is None else _loss(loss),
    )


def _component(config: Config, key: str) -> Fact[str] | None:
    setting = config.get(f"{key}._component_")
    if setting is None or not isinstance(setting.value, str):
        return None
    return Fact(value=setting.value, setting=setting)


def _loss(loss: Fact[str]) -> Fact[Loss] | None:
    name = loss.value.rpartition(".")[2]
    if "Chunked" in name or name.startswith("Linear"):
        return Fact(value=Loss.CHUNKED, setting=loss.setting)
    if loss.value == "torch.nn.CrossEntropyLoss":
        return Fact(value=Loss.FULL, setting=loss.setting)
    return None


def _checkpointing(config: Config) -> Fact[Checkpointing] | None:
    switch = config.get("enable_activation_checkpointing")
    if config.value("ac_mode") is not None or (switch is not None and not isinstance(switch.value, bool)):
        return None  # some recipes read ac_mode, and some do not
    is_on = switch is not None and switch.value is True
    return Fact(value=Checkpointing.FULL if is_on else Checkpointing.NONE, setting=switch)
