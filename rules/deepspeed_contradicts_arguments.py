"""Transformers refuses a DeepSpeed config whose values are not those of the training arguments."""

from collections.abc import Iterator

from planner.configs.config import Config, Setting, report
from planner.diagnostics import Report, Rule, Severity, Source

# DeepSpeed's keys, the training arguments that they must equal, and the default of those where a config of Transformers
# leaves them out: None where that depends on the trainer. Source: HfTrainerDeepSpeedConfig.trainer_config_process.
_PAIRS = (
    ("train_micro_batch_size_per_gpu", "per_device_train_batch_size"),
    ("gradient_accumulation_steps", "gradient_accumulation_steps"),
    ("gradient_clipping", "max_grad_norm"),
    ("optimizer.params.lr", "learning_rate"),
    ("optimizer.params.eps", "adam_epsilon"),
    ("optimizer.params.weight_decay", "weight_decay"),
    ("fp16.enabled", "fp16"),
    ("bf16.enabled", "bf16"),
)
# Arguments whose default TRL's trainers change each in its way.
_DEFAULTS_OF_TRAINERS = frozenset(("learning_rate", "bf16", "weight_decay"))
_FULL_EVAL = ("fp16_full_eval", "bf16_full_eval")  # these count as fp16 and bf16


def find(config: Config) -> Iterator[Report]:
    """A report for each value of the DeepSpeed config that differs from the argument it must equal."""
    linked = config.link("deepspeed")
    if linked is None or any(config.on(key) for key in (*_FULL_EVAL, "auto_find_batch_size")):
        return
    for theirs, ours in _PAIRS:
        their_setting, own_setting = linked.get(theirs), config.get(ours)
        if own_setting is None and ours in _DEFAULTS_OF_TRAINERS and config.dialect.name != "transformers":
            continue
        own_value = config.value(ours)
        if their_setting is not None and _differ(their_setting.value, own_value):
            yield _contradiction(config, their_setting, own_setting, ours, own_value)


def _differ(their_value: object, own_value: object) -> bool:
    numbers = (bool, int, float)
    if not isinstance(their_value, numbers) or not isinstance(own_value, numbers):
        return False  # "auto", which is filled in, or what is not known
    return their_value != own_value


def _contradiction(
    config: Config, their_setting: Setting, own_setting: Setting | None, ours: str, own_value: object
) -> Report:
    place = own_setting or config.get("deepspeed")
    assert place is not None  # the link comes from that key
    told = "" if own_setting is not None else ", its default"
    return report(
        place,
        f"{ours} is {_shown(own_value)}{told}, and the DeepSpeed config has {_shown(their_setting.value)} for "
        f"{their_setting.key}: Transformers refuses values that differ",
        help=f'write "auto" for {their_setting.key}; the argument\'s value is filled in',
        related=[(their_setting, f"{_shown(their_setting.value)} here")],
    )


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


RULE = Rule(
    code="PL201",
    name="deepspeed-contradicts-arguments",
    severity=Severity.ERROR,
    summary="The DeepSpeed config that is named has another value than the training arguments.",
    why="The Trainer compares the two when training begins, after model and data are loaded, and ends with a list of "
    "mismatches.",
    instead='`"auto"` in the DeepSpeed config, for all keys that the training arguments have.',
    sources=(
        Source(
            title="transformers 5.24",
            where="src/transformers/integrations/deepspeed.py: HfTrainerDeepSpeedConfig.trainer_config_process",
        ),
        Source(title="Transformers: DeepSpeed", where="https://huggingface.co/docs/transformers/deepspeed"),
    ),
    find=find,
    dialects=("transformers", "trl", "llamafactory"),
)
