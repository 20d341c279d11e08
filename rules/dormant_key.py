"""Keys that have an effect only together with a switch that is off."""

from collections.abc import Iterator

from planner.configs.config import Config, Setting, report
from planner.diagnostics import Report, Rule, Severity, Source


def find(config: Config) -> Iterator[Report]:
    """A report for each switch that is off, at the first of the keys that wait for it."""
    waiting: dict[str, list[Setting]] = {}
    for setting in config.settings():
        schema = config.dialect.key_schema(setting.key)
        switch = schema.get("x-needs") if schema else None
        if schema and switch and setting.value and setting.value != schema.get("default") and _is_off(config, switch):
            waiting.setdefault(switch, []).append(setting)
    for switch, keys in waiting.items():
        first, *others = keys
        key, _, wanted = switch.partition("=")
        consequence = (config.dialect.key_schema(key) or {}).get("x-off", "")
        yield report(
            first.at_key,
            f"{first.key} has no effect, because {key} is not {wanted or 'set'}"
            + (f": {consequence}" if consequence else ""),
            help=f"set {switch.replace('=', ': ')}, or remove {'these keys' if others else 'the key'}",
            related=[(other.at_key, f"{other.key} has none either") for other in others],
        )


def _is_off(config: Config, switch: str) -> bool:
    key, _, wanted = switch.partition("=")
    value = config.value(key)
    if isinstance(value, str) and ("${" in value or "{{" in value):
        return False  # filled in by another program
    return value != wanted if wanted else not value


RULE = Rule(
    code="KEY102",
    name="dormant-key",
    severity=Severity.NO_OP,
    summary="Keys that do nothing because the switch that they belong to is off.",
    why="A rank is given and no adapter, so that all parameters are trained, with gradients and optimizer state for "
    "each; or checkpointing is configured and not switched on. The framework takes the keys and says nothing.",
    instead="Set the switch, or remove what waits for it.",
    sources=(
        Source(title="axolotl 0.19.0", where="loaders/adapter.py, load_adapter; core/builders/base.py"),
        Source(title="LLaMA-Factory 0.9.5", where="llamafactory/model/adapter.py; hparams/finetuning_args.py"),
    ),
    find=find,
    dialects=("axolotl", "llamafactory"),
)
