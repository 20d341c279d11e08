"""How FSDP and ZeRO are asked for in configs of Transformers, Accelerate and DeepSpeed, for readers and rules."""

from planner.configs.config import Config, Setting

# Release of Transformers whose fsdp_config means FSDP2 where it does not say. Source: training_args.py of transformers
# 5.8.0 and 5.11.0, the releases on both sides that were read.
_FSDP2_SINCE = (5, 11)
# Keys of DeepSpeed whose "auto" only Transformers and Accelerate know.
_FILLED_IN = ("train_micro_batch_size_per_gpu", "train_batch_size", "gradient_accumulation_steps", "gradient_clipping")


def is_true(value: object) -> bool:
    """Whether a value is true, also as the text that command lines and JSON files have."""
    return value is True or (isinstance(value, str) and value.lower() in ("true", "1", "yes", "y", "t", "on"))


def fsdp_words(config: Config) -> tuple[str, ...]:
    """The words of TrainingArguments' key ``fsdp``, in lower case; "true" for true; none where FSDP is off."""
    value = None if (setting := config.get("fsdp")) is None else setting.value
    if isinstance(value, bool):
        return ("true",) if value else ()
    words = value if isinstance(value, list) else value.split() if isinstance(value, str) else ()
    return tuple(str(word).lower() for word in words if str(word).lower() not in ("", "false"))


def fsdp_setting(config: Config, name: str) -> Setting | None:
    """The setting of an FSDP key, with or without its prefix, in an Accelerate config or in TrainingArguments."""
    if config.dialect.name == "transformers_fsdp":
        return config.first(name, f"fsdp_{name}")
    linked = config.link("transformers_fsdp")
    if linked is not None:
        return fsdp_setting(linked, name)
    return config.first(f"fsdp_config.fsdp_{name}", f"fsdp_config.{name}")


def fsdp_version(config: Config) -> int | None:
    """Which FSDP an Accelerate config or TrainingArguments ask for; None where it cannot be told."""
    setting = fsdp_setting(config, "version")
    if setting is not None:
        return int(str(setting.value)) if str(setting.value) in ("1", "2") else None
    release = config.versions.get("transformers")
    return 1 if release is None or release < _FSDP2_SINCE else 2


def is_for_transformers(config: Config) -> bool:
    """Whether a DeepSpeed config is surely for Transformers or Accelerate: they name it, or are to fill it in."""
    return config.named_by is not None or any(
        (setting := config.get(key)) is not None and setting.value == "auto" for key in _FILLED_IN
    )


def zero_stage(config: Config) -> int | None:
    """The ZeRO stage of a DeepSpeed config; None where it is not known, such as "auto"."""
    whole = config.get("zero_optimization")
    if whole is not None and isinstance(whole.value, bool):
        return int(whole.value)  # an old form: true is stage 1
    stage = config.get("zero_optimization.stage")
    if stage is None:
        return 0
    return stage.value if isinstance(stage.value, int) and not isinstance(stage.value, bool) else None
