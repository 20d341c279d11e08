"""Megatron-Core's settings, by the names of its own configuration, however a framework built on it spells them.

Megatron-LM has them as flags, Megatron-Bridge and NeMo below ``model``, ms-swift beside its own arguments, and verl
once for each of its models. What a rule says of Megatron-Core then holds in all of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from planner.configs.config import Config, Setting
from planner.configs.facts import Checkpointing

# What Megatron-Core takes where nothing is said: megatron/core/model_parallel_config.py, 0.14 to 0.19.
_DEFAULTS = {
    "tensor_model_parallel_size": 1,
    "pipeline_model_parallel_size": 1,
    "context_parallel_size": 1,
    "expert_model_parallel_size": 1,
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CoreSettings:
    """Megatron-Core's settings in one config, or in one model of it.

    Attributes:
        config: The config.
        prefixes: What stands before their names, in the order in which they are looked for.
        names: Names that are other than Megatron-Core's.
        dashes: Whether dashes stand for underscores.
        is_complete: Whether what the config leaves out is at its default, rather than said elsewhere.
        recompute_granularity: What is recomputed where nothing is said.
    """

    config: Config
    prefixes: tuple[str, ...] = ("",)
    names: Mapping[str, str] = field(default_factory=dict)
    dashes: bool = False
    is_complete: bool = True
    recompute_granularity: Checkpointing = Checkpointing.NONE

    def get(self, name: str) -> Setting | None:
        """The setting of Megatron-Core's name, or None where the config does not have it."""
        key = self.names.get(name, name)
        if self.dashes:
            key = key.replace("_", "-")
        return self.config.first(*(prefix + key for prefix in self.prefixes))

    def asked(self, name: str) -> Setting | None:
        """The setting, where it asks for something: neither null nor false, and no template."""
        setting = self.get(name)
        if setting is None or setting.value is None or setting.value is False or _is_template(setting.value):
            return None
        return setting

    def is_off(self, name: str) -> bool:
        """Whether it is known that nothing is asked for under this name."""
        setting = self.get(name)
        return self.is_complete if setting is None else setting.value is None or setting.value is False

    def number(self, name: str) -> int | None:
        """The whole number of this name, or its default; None where it is not known."""
        setting = self.get(name)
        if setting is None:
            return _DEFAULTS.get(name) if self.is_complete else None
        value = setting.value
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def key(self, name: str) -> str:
        """How the config spells a name, for people."""
        spelt = self.names.get(name, name)
        return spelt.replace("_", "-") if self.dashes else spelt

    @property
    def recompute(self) -> tuple[Checkpointing | None, Setting | None]:
        """What backward recomputes, None where that is not known, and the setting that says it."""
        for flag in ("recompute_activations", "moe_layer_recompute"):
            setting = self.asked(flag)
            if setting is not None:
                return Checkpointing.SELECTIVE, setting
        setting = self.get("recompute_granularity")
        if setting is None:
            return (self.recompute_granularity if self.is_complete else None), None
        if setting.value in (None, "none"):
            return Checkpointing.NONE, setting
        known = {"full": Checkpointing.FULL, "selective": Checkpointing.SELECTIVE}
        return known.get(str(setting.value)), setting


def cores(config: Config) -> tuple[CoreSettings, ...]:
    """Megatron-Core's settings in a config: none where it does not use Megatron-Core, several where it has models."""
    is_whole = "$unknown" not in config.root.by_key
    match config.dialect.name:
        case "megatron":
            elsewhere = config.on("use-checkpoint-args") or config.get("yaml-cfg")
            return (CoreSettings(config=config, dashes=True, is_complete=is_whole and elsewhere is None),)
        case "megatron_bridge":
            return (CoreSettings(config=config, prefixes=("model.",), is_complete=False),)
        case "nemo":
            return (CoreSettings(config=config, prefixes=("model.",), names=_NEMO_NAMES, is_complete=False),)
        case "ms_swift":
            settings = CoreSettings(
                config=config,
                names={"seq_length": "max_length"},
                is_complete=is_whole,
                recompute_granularity=Checkpointing.SELECTIVE,
            )
            return (settings,) if is_megatron_swift(config) else ()
        case "verl":
            return tuple(
                CoreSettings(
                    config=config,
                    prefixes=(f"{model}.megatron.", f"{model}.megatron.override_transformer_config."),
                    is_complete=is_whole,
                )
                for model in ("actor_rollout_ref.actor", "actor_rollout_ref.ref", "critic")
                if config.get(f"{model}.megatron") is not None
            )
    return ()


def is_megatron_swift(config: Config) -> bool:
    """Whether a config of ms-swift is for its megatron commands."""
    command = config.get("$command")
    if command is not None:
        return str(command.value).split()[:1] == ["megatron"]
    return config.first("tensor_model_parallel_size", "mcore_model", "recompute_granularity") is not None


_NEMO_NAMES = {
    "seq_length": "encoder_seq_length",
    "recompute_granularity": "activations_checkpoint_granularity",
    "recompute_method": "activations_checkpoint_method",
    "recompute_num_layers": "activations_checkpoint_num_layers",
}


def _is_template(value: object) -> bool:
    return isinstance(value, str) and ("$" in value or "{{" in value)
