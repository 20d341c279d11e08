"""A number with a fraction stands where DeepSpeed takes whole numbers only."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.configs.dialect import UnknownKeys
from planner.diagnostics import Report, Rule, Severity, Source

_FP16_CHECKED_SINCE = (0, 17, 5)  # the first release read that does; 0.17.0 does not


def find(config: Config) -> Iterator[Report]:
    """A report for each such number in a part that DeepSpeed checks."""
    for setting in config.settings():
        value, part = setting.value, setting.key.rpartition(".")[0]
        if not isinstance(value, float) or value.is_integer() or not part:
            continue
        schema, around = config.dialect.key_schema(setting.key), config.dialect.key_schema(part)
        if schema is None or around is None or schema.get("type") != "integer":
            continue
        if around.get("x-unknown-keys") != UnknownKeys.REJECTED:
            continue  # a part that is not checked
        if not part.startswith("fp16") or config.target >= _FP16_CHECKED_SINCE:
            yield report(
                setting,
                f"{setting.key} is a whole number to DeepSpeed, which refuses {value:g}",
                help="1 is the default" if setting.key == "fp16.min_loss_scale" else "",
            )


RULE = Rule(
    code="KEY202",
    name="fraction-where-an-integer-belongs",
    severity=Severity.ERROR,
    summary="A number with a fraction stands where DeepSpeed takes whole numbers.",
    why="DeepSpeed checks these values with pydantic, also those of parts that are not enabled. A min_loss_scale of "
    "1e-10 went from config to config while the fp16 part was not checked; since 0.17.5 it ends the run at its start.",
    instead="A whole number.",
    sources=(Source(title="DeepSpeed 0.19.8", where="deepspeed/runtime/precision_config.py: DeepSpeedFP16Config"),),
    find=find,
    dialects=("deepspeed",),
)
