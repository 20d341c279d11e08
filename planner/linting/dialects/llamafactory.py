"""What a LLaMA-Factory config asks for: its own keys, and those of Hugging Face's TrainingArguments beside them.

Source: llamafactory 0.9.5, hparams/*.py, model/model_utils/{attention,checkpointing,liger_kernel}.py, data/collator.py.
"""

from typing import Any

from planner.configs.config import Config
from planner.configs.facts import ALL_LINEAR, Attention, Checkpointing, Fact, Facts, Loss
from planner.configs.sharding import is_true
from planner.linting.dialects.transformers import training_arguments

_ATTENTION = {
    "disabled": Attention.EAGER,
    "sdpa": Attention.SDPA,
    "fa2": Attention.FLASH,
    "fa3": Attention.FLASH,
}
# Losses of its own, which need the logits.
_LOSSES = ("use_dft_loss", "use_eaft_loss", "use_asft_loss")
_OPTIMIZERS = ("use_galore", "use_apollo", "use_badam", "use_adam_mini", "use_muon")
_CAUSAL_STAGES = ("pt", "sft")


def read(config: Config) -> Facts:
    """The training facts of a LLaMA-Factory config."""
    facts = training_arguments(config)
    for part in (_checkpointing, _packing, _adapter, _precision):
        facts |= part(config)
    kernel = config.get("flash_attn")
    if kernel is not None and isinstance(kernel.value, str) and kernel.value in _ATTENTION:
        facts["attention"] = Fact(value=_ATTENTION[kernel.value], setting=kernel)
    facts["loss"] = _loss(config)
    if any(config.on(key) for key in _OPTIMIZERS):
        facts.pop("optimizer", None)  # they take the place of the one that `optim` names
    if config.value("stage") not in _CAUSAL_STAGES:
        facts.pop("micro_batch", None)  # a row is a pair of texts, or is generated first
    return Facts(**facts)


def _checkpointing(config: Config) -> dict[str, Any]:
    """Checkpointing, which is on unless disabled; the trainer's own key can only switch it on a second time."""
    disabled, again = config.get("disable_gradient_checkpointing"), config.get("gradient_checkpointing")
    is_on = not (disabled is not None and is_true(disabled.value)) or (again is not None and is_true(again.value))
    host = config.on("use_unsloth_gc")
    facts: dict[str, Any] = {
        "checkpointing": Fact(value=Checkpointing.FULL if is_on else Checkpointing.NONE, setting=disabled),
        "activation_offload": Fact(value=is_on and host is not None, setting=host),
    }
    reentrant = config.get("use_reentrant_gc")
    if is_on and (reentrant is None or isinstance(reentrant.value, bool)):
        facts["reentrant"] = Fact(value=reentrant is None or reentrant.value is True, setting=reentrant)
    return facts


def _packing(config: Config) -> dict[str, Any]:
    """Packing, which is on in pretraining unless switched off."""
    setting = config.on("neat_packing") or config.get("packing")
    if setting is None or setting.value is None:
        return {"packing": Fact(value=config.value("stage") == "pt")}
    return {"packing": Fact(value=setting.value, setting=setting)} if isinstance(setting.value, bool) else {}


def _adapter(config: Config) -> dict[str, Any]:
    kind = config.get("finetuning_type")
    name = config.value("finetuning_type")
    facts: dict[str, Any] = {"lora": Fact(value=name == "lora", setting=kind)} if isinstance(name, str) else {}
    targets = config.get("lora_target")
    written = config.value("lora_target")
    if name == "lora" and isinstance(written, str):
        names = tuple(part.strip() for part in written.split(","))
        facts["lora_targets"] = Fact(value=(ALL_LINEAR,) if names == ("all",) else names, setting=targets)
    return facts


def _precision(config: Config) -> dict[str, Any]:
    """The dtypes: weights are loaded in that of the computation, and those that are trained in full made float32."""
    if pure := config.on("pure_bf16"):
        fact = Fact(value="bfloat16", setting=pure)
        return {"compute_dtype": fact, "parameter_dtype": fact}
    kind = config.value("finetuning_type")
    if kind == "full":
        return {} if config.on("use_badam") else {"parameter_dtype": Fact(value="float32")}
    if kind == "lora" and (bf16 := config.get("bf16")) and is_true(bf16.value):
        return {"parameter_dtype": Fact(value="bfloat16", setting=bf16)}
    return {}


def _loss(config: Config) -> Fact[Loss] | None:
    """How the loss is computed; None where it is not the language model's alone."""
    if config.value("stage") not in _CAUSAL_STAGES or any(config.on(key) for key in _LOSSES):
        return None
    liger = config.on("enable_liger_kernel")
    return Fact(value=Loss.FULL if liger is None else Loss.FUSED, setting=liger)
