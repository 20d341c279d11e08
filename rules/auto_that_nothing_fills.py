"""A value is left to be filled in where neither Transformers nor Accelerate do, so that the default holds."""

from collections.abc import Iterator, Mapping

from planner.configs.config import Config, report
from planner.configs.sharding import is_for_transformers
from planner.diagnostics import Report, Rule, Severity, Source

# Source: transformers 5.24, integrations/deepspeed.py: HfTrainerDeepSpeedConfig; accelerate 1.15, utils/dataclasses.py:
# DeepSpeedPlugin. Optimizer and scheduler have parameters of their own, of which the same is true.
_FILLED = frozenset(
    (
        "reduce_bucket_size",
        "stage3_prefetch_bucket_size",
        "stage3_param_persistence_threshold",
        "stage",
        "offload_optimizer.device",
        "offload_optimizer.nvme_path",
        "offload_param.device",
        "offload_param.nvme_path",
        "stage3_gather_16bit_weights_on_model_save",
    )
)
_PREFIX = "zero_optimization."
_OWN_AUTO = ("zenflow.",)  # DeepSpeed itself knows "auto" here


def find(config: Config) -> Iterator[Report]:
    """A report for each such key of zero_optimization."""
    if not is_for_transformers(config):
        return  # another script may fill in what it likes
    for setting in config.settings():
        name = setting.key.removeprefix(_PREFIX)
        if setting.value != "auto" or name == setting.key or name in _FILLED or name.startswith(_OWN_AUTO):
            continue
        schema = config.dialect.key_schema(setting.key)
        if schema is not None and "x-removed" not in schema:
            yield report(
                setting,
                f'nothing fills in "auto" for {name}: DeepSpeed takes {_default(schema)}',
                help="write the value that is meant, or remove the key",
            )


def _default(schema: Mapping[str, object]) -> str:
    value = schema.get("default")
    if value is None:
        return "its default"
    shown = str(value).lower() if isinstance(value, bool) else f"{value:,}" if isinstance(value, int) else str(value)
    return f"its default, {shown}"


RULE = Rule(
    code="KEY201",
    name="auto-that-nothing-fills",
    severity=Severity.NO_OP,
    summary='A key of zero_optimization is "auto", and nothing gives it a value.',
    why='Transformers fills in "auto" for some keys from the training arguments and the model. DeepSpeed drops every '
    'other "auto", so that its default holds: stage3_max_live_parameters is then 1e9, 2 GB of parameters in bfloat16.',
    instead="A number.",
    sources=(
        Source(title="DeepSpeed 0.19.8", where="deepspeed/runtime/config_utils.py: DeepSpeedConfigModel.__init__"),
        Source(title="transformers 5.24", where="src/transformers/integrations/deepspeed.py: HfTrainerDeepSpeedConfig"),
    ),
    find=find,
    dialects=("deepspeed",),
)
