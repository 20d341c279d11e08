"""Tensor and context parallelism of Megatron-LM need CUDA_DEVICE_MAX_CONNECTIONS=1 before Blackwell."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.diagnostics import Report, Rule, Severity, Source

_VARIABLE = "CUDA_DEVICE_MAX_CONNECTIONS"


def find(config: Config) -> Iterator[Report]:
    """A report where ranks share a tensor or a sequence and the variable is not 1 as far as the file says."""
    if config.on("use-megatron-fsdp") or config.on("use-torch-fsdp2") or config.on("overlap-moe-expert-parallel-comm"):
        return
    shared = [
        setting
        for key in ("tensor-model-parallel-size", "context-parallel-size")
        if (setting := config.get(key)) is not None and isinstance(setting.value, int) and setting.value > 1
    ]
    connections = config.environment.get(_VARIABLE)
    value = None if connections is None else str(connections.value)
    if not shared or value == "1" or (value is not None and "$" in value):
        return
    found = "is not set here" if connections is None else f"is {value}"
    yield report(
        connections or shared[0],
        f"{_VARIABLE} {found}: before Blackwell Megatron-LM asserts that it is 1 with tensor or context parallelism",
        help=f"set {_VARIABLE}=1, unless the machines have Blackwell GPUs or set it elsewhere",
        related=[(shared[0], "ranks share work here")] if connections is not None else [],
    )


RULE = Rule(
    code="PL406",
    name="device-connections-unset",
    severity=Severity.ERROR,
    summary="Tensor or context parallelism without CUDA_DEVICE_MAX_CONNECTIONS=1.",
    why="With one connection kernels start in the order in which they were launched, and communication overlaps the "
    "matrix product that it was meant to. Megatron-LM asserts it on GPUs before Blackwell. The variable may be set "
    "where no file says so, which is why this rule has to be asked for.",
    instead="`CUDA_DEVICE_MAX_CONNECTIONS=1`.",
    sources=(Source(title="Megatron-LM, megatron-core 0.19.2", where="megatron/training/arguments.py: validate_args"),),
    find=find,
    dialects=("megatron",),
    opt_in=True,
)
