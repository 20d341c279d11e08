"""What a training config would need of a device, by the closed form of `planner.estimation`: for rules that ask.

Only where everything that decides it is known: the model by its hub name, the sizes, dtypes, optimizer and sharding.
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from planner.configs.config import Prospect
from planner.configs.facts import ALL_LINEAR, Attention, Checkpointing, Facts, Loss, Sharding
from planner.device import DeviceProfile
from planner.errors import PlannerError

_LOSS_KERNELS = {Loss.FULL: "full", Loss.CHUNKED: "chunked", Loss.FUSED: "fused-linear"}
_CHECKPOINTING = {Checkpointing.NONE: "none", Checkpointing.FULL: "block"}
# Names that frameworks give to optimizers, in lower case without what says where they are from. Source:
# transformers 5.24, training_args.py, OptimizerNames; torch.optim; bitsandbytes.optim.
_OPTIMIZERS: Mapping[str, tuple[str, str | None]] = {
    "adamw_torch": ("adamw", "foreach"),
    "adamw_torch_fused": ("adamw", "fused"),
    "adamw": ("adamw", "foreach"),
    "adam": ("adam", "foreach"),
    "adamw_bnb_8bit": ("adamw-8bit", None),
    "adamw_8bit": ("adamw-8bit", None),
    "adamw8bit": ("adamw-8bit", None),
    "paged_adamw_32bit": ("paged-adamw", None),
    "paged_adamw": ("paged-adamw", None),
    "pagedadamw": ("paged-adamw", None),
    "paged_adamw_8bit": ("paged-adamw-8bit", None),
    "pagedadamw8bit": ("paged-adamw-8bit", None),
    "adafactor": ("adafactor", None),
    "lion_32bit": ("lion", None),
    "sgd": ("sgd", None),
}


def prospects(device: DeviceProfile) -> Callable[[Facts], Prospect | None]:
    """The function from facts to what their run would need of the device; None where too little is known."""

    @cache
    def prospect(facts: Facts) -> Prospect | None:
        data = spec_data(facts)
        if data is None:
            return None
        from planner.estimation.from_spec import run_of
        from planner.estimation.verdict import estimate
        from planner.spec import from_mapping

        try:
            found = estimate(run_of(from_mapping(data)), device)
        except PlannerError:
            return None  # sizes that contradict each other, or what is not counted: rules are silent about both
        return Prospect(
            verdict=found.verdict.value,
            low_bytes=found.total.low_bytes,
            high_bytes=found.total.high_bytes,
            usable_bytes=found.usable_bytes,
            phase=found.peak.phase.value,
            device=device.name,
        )

    return prospect


def spec_data(facts: Facts) -> dict[str, Any] | None:
    """The facts as a model spec's data; None where too little is known, or what is known has no word there."""
    preset = None if facts.model is None else preset_of(facts.model.value)
    checkpointing = None if facts.checkpointing is None else _CHECKPOINTING.get(facts.checkpointing.value)
    optimizer = _OPTIMIZERS.get(_last_word(facts.optimizer.value)) if facts.optimizer else None
    parallel = _parallel(facts)
    if preset is None or checkpointing is None or optimizer is None or parallel is None:
        return None
    if facts.micro_batch is None or facts.sequence_length is None:
        return None
    if facts.compute_dtype is None or facts.parameter_dtype is None:
        return None
    name, implementation = optimizer
    data: dict[str, Any] = {
        "model": {"preset": preset},
        "batch": {"micro_batch": facts.micro_batch.value, "sequence_length": facts.sequence_length.value},
        "precision": {"parameters": facts.parameter_dtype.value, "compute": facts.compute_dtype.value},
        "optimizer": {"name": name} if implementation is None else {"name": name, "implementation": implementation},
        "checkpointing": checkpointing,
        "attention": "eager" if facts.attention and facts.attention.value is Attention.EAGER else "flash",
        "loss_kernel": _LOSS_KERNELS[facts.loss.value if facts.loss else Loss.FULL],
        "gradient_accumulation": facts.accumulation_steps.value if facts.accumulation_steps else 1,
        "parallel": parallel,
        "offload": {
            "activations": _is_on(facts.activation_offload),
            "optimizer": _is_on(facts.optimizer_offload),
            "parameters": _is_on(facts.parameter_offload),
        },
    }
    if _is_on(facts.lora):
        if facts.lora_rank is None or facts.lora_targets is None:
            return None
        data["lora"] = {"rank": facts.lora_rank.value}
        if facts.lora_targets.value != (ALL_LINEAR,):
            data["lora"]["targets"] = list(facts.lora_targets.value)
        if facts.quantization_bits is not None:
            data["lora"]["quantization"] = {4: "nf4-double", 8: "int8"}.get(facts.quantization_bits.value)
    elif facts.quantization_bits is not None:
        return None
    return data


def _is_on(fact: Any) -> bool:
    return fact is not None and fact.value is True


def _last_word(name: str) -> str:
    """The optimizer's own name: "adamw" of "torch.optim.AdamW"."""
    return name.rpartition(".")[2].lower()


def _degree(fact: Any) -> int:
    return 1 if fact is None else fact.value


def _parallel(facts: Facts) -> dict[str, Any] | None:
    """The degrees as a spec has them; None when data-parallel ranks divide something and their number is not known."""
    tensor, pipeline, context = (
        _degree(fact) for fact in (facts.tensor_parallel, facts.pipeline_parallel, facts.context_parallel)
    )
    inner = {"tp": tensor, "pp": pipeline, "cp": context, "sp": tensor > 1 and _is_on(facts.sequence_parallel)}
    data = facts.data_parallel.value if facts.data_parallel else None
    if data is None and facts.ranks is not None and facts.ranks.value % (tensor * pipeline * context) == 0:
        data = facts.ranks.value // (tensor * pipeline * context)
    sharding = facts.sharding.value if facts.sharding else Sharding.NONE
    if sharding is Sharding.NONE:
        return {**inner, "ddp": data or 1}
    if data is None:
        return None
    if sharding is Sharding.PARAMETERS:
        return {**inner, "fsdp": data}
    return {**inner, "ddp": data, "zero": 1 if sharding is Sharding.OPTIMIZER else 2}


@cache
def _preset_by_hub_name() -> Mapping[str, str]:
    from planner.presets import load_preset, preset_names

    return {hub.lower(): name for name in preset_names() for hub in load_preset(name).hub}


def preset_of(model: str) -> str | None:
    """The preset that has the sizes of a model on the hub, by its name."""
    return _preset_by_hub_name().get(model.lower())
