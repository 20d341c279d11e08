"""Accelerate refuses settings beside deepspeed_config_file that belong into that file."""

from collections.abc import Iterator, Sequence

from planner.configs.config import Config, report
from planner.diagnostics import Report, Rule, Severity, Source

# Source: accelerate 1.15.0, utils/dataclasses.py: DeepSpeedPlugin._deepspeed_config_checks.
_IN_THE_FILE = (
    "gradient_accumulation_steps",
    "gradient_clipping",
    "zero_stage",
    "offload_optimizer_device",
    "offload_optimizer_nvme_path",
    "offload_param_device",
    "offload_param_nvme_path",
    "zero3_save_16bit_model",
)


def find(config: Config) -> Iterator[Report]:
    """A report for the first setting that Accelerate refuses there, with the others beside it."""
    file = config.get("deepspeed_config.deepspeed_config_file")
    if file is None or not file.value or file.value == "none" or config.value("distributed_type") != "DEEPSPEED":
        return
    inner = [config.get(f"deepspeed_config.{key}") for key in _IN_THE_FILE]
    precision = config.get("mixed_precision")
    refused = [*inner, precision if precision is not None and precision.value is not None else None]
    found = [setting for setting in refused if setting is not None]
    if found:
        names = ", ".join(setting.key.rpartition(".")[2] for setting in found)
        yield report(
            found[0].at_key,
            f"Accelerate refuses {names} beside deepspeed_config_file: the file is to say {_pronoun(found)}",
            help=f"remove {_pronoun(found)} here, and set {_pronoun(found)} in {file.value}",
            related=[(file, "the file is named here"), *((other.at_key, "refused too") for other in found[1:])],
        )


def _pronoun(found: Sequence[object]) -> str:
    return "it" if len(found) == 1 else "them"


RULE = Rule(
    code="PL203",
    name="deepspeed-file-beside-settings",
    severity=Severity.ERROR,
    summary="An Accelerate config names a DeepSpeed file and has settings besides that belong there.",
    why="Accelerate raises an error when training begins: it does not decide which of the two counts.",
    instead="The settings in the DeepSpeed file alone; `bf16` and `fp16` there take the place of mixed_precision.",
    sources=(Source(title="accelerate 1.15", where="accelerate/utils/dataclasses.py: _deepspeed_config_checks"),),
    find=find,
    dialects=("accelerate",),
)
