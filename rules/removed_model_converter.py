"""A model converter under the name that torchtitan 0.1 had for it."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.configs.keys import is_surely_of
from planner.diagnostics import Edit, Fix, FixSafety, Report, Rule, Severity, Source

_RENAMED_IN = "0.2.0"
_RENAMED = {"float8": "quantize.linear.float8", "mx": "quantize.linear.mx"}
_OWN_CODE = ("experimental.custom_import", "job.custom_config_module")  # which may register converters


def find(config: Config) -> Iterator[Report]:
    """A report for each converter whose name was removed."""
    converters = config.value("model.converters")
    if not isinstance(converters, list) or any(config.value(key) for key in _OWN_CODE):
        return
    if not is_surely_of(config, config.dialect.name, _RENAMED_IN):
        return
    for number in range(len(converters)):
        converter = config.get(f"model.converters.{number}")
        name = None if converter is None else _RENAMED.get(str(converter.value))
        if converter is None or name is None:
            continue
        place = converter.at_value
        edit = Edit(document=place.document, start=place.start, end=place.end, text=f'"{name}"')
        yield report(
            converter,
            f"torchtitan {_RENAMED_IN} renamed the converter {converter.value} to {name}, and fails on the old name",
            help=f'write "{name}"',
            fix=Fix(title=f"Rename to {name}", safety=FixSafety.SAFE, edits=(edit,)),
        )


RULE = Rule(
    code="PR304",
    name="removed-model-converter",
    severity=Severity.ERROR,
    summary="A model converter has the name that torchtitan 0.1 had for it.",
    why="Converters are looked up by name when the trainer is made, and an unknown one is a `KeyError`. The 405B "
    "example that came with 0.2 still had the old name.",
    instead='`converters = ["quantize.linear.float8"]`, with its options under `[quantize.linear.float8]`.',
    sources=(
        Source(title="torchtitan 0.2.2", where="torchtitan/protocols/model_converter.py, ModelConvertersContainer"),
        Source(title="torchtitan 0.2.0", where="torchtitan/components/quantization/float8.py"),
    ),
    find=find,
    dialects=("torchtitan",),
    fix=FixSafety.SAFE,
)
