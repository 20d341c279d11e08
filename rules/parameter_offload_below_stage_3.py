"""Parameters are to be held in host memory, and the ZeRO stage does not divide parameters."""

from collections.abc import Iterator

from planner.configs.config import Config, Setting, report
from planner.configs.sharding import zero_stage
from planner.diagnostics import Report, Rule, Severity, Source

_PARAMETERS_STAGE = 3
_HOST_DEVICES = ("cpu", "nvme")
_DEFAULT_STAGE = 2  # accelerate 1.15.0, utils/dataclasses.py: DeepSpeedPlugin


def find(config: Config) -> Iterator[Report]:
    """A report where parameters are to be offloaded below stage 3."""
    if config.dialect.name == "deepspeed":
        device, stage = config.get("zero_optimization.offload_param.device"), config.get("zero_optimization.stage")
        number = zero_stage(config)
    else:
        if config.value("distributed_type") != "DEEPSPEED" or config.get("deepspeed_config.deepspeed_config_file"):
            return
        device, stage = config.get("deepspeed_config.offload_param_device"), config.get("deepspeed_config.zero_stage")
        number = _number(stage)
    if device is None or device.value not in _HOST_DEVICES or number is None or number >= _PARAMETERS_STAGE:
        return
    yield report(
        device,
        f"parameters stay on the GPU: they are offloaded only in ZeRO stage 3, and this is stage {number}"
        + ("" if stage is not None else " by default"),
        help="set the stage to 3, or remove this; offload_optimizer works from stage 1 on",
        related=[(stage, "the stage")] if stage is not None else [],
    )


def _number(stage: Setting | None) -> int | None:
    if stage is None:
        return _DEFAULT_STAGE
    return int(str(stage.value)) if str(stage.value) in ("0", "1", "2", "3") else None


RULE = Rule(
    code="OF203",
    name="parameter-offload-below-stage-3",
    severity=Severity.NO_OP,
    summary="Parameters are to be offloaded, and the ZeRO stage is below 3.",
    why="The optimizers of stages 1 and 2 never look at offload_param: every GPU keeps all parameters, 2 bytes each in "
    "bfloat16, and nothing is said.",
    instead="Stage 3, which divides parameters among the GPUs and can offload its share.",
    sources=(
        Source(title="DeepSpeed 0.19.8", where="deepspeed/runtime/zero/config.py: offload_param"),
        Source(title="DeepSpeed 0.19.8", where="deepspeed/runtime/engine.py: _configure_zero_optimizer"),
    ),
    find=find,
    dialects=("deepspeed", "accelerate"),
)
