"""FSDP in Megatron needs more than one hardware queue, and refuses CUDA_DEVICE_MAX_CONNECTIONS=1."""

from collections.abc import Iterator

from planner.configs.config import Config, Setting, report
from planner.diagnostics import Report, Rule, Severity, Source

_VARIABLE = "CUDA_DEVICE_MAX_CONNECTIONS"


def find(config: Config) -> Iterator[Report]:
    """A report where FSDP is on and the variable is 1, or is set to 1 by ms-swift."""
    fsdp = _fsdp(config)
    if fsdp is None:
        return
    connections = config.environment.get(_VARIABLE)
    if connections is not None and str(connections.value) == "1":
        yield report(
            connections,
            f"{fsdp.entry.key} needs several device connections, to gather parameters while it computes: "
            f"{config.dialect.framework} refuses 1",
            help=f"remove {_VARIABLE}, or set it to 8 or 32",
            related=[(fsdp, "FSDP is on here")],
        )
    elif connections is None and config.dialect.name == "ms_swift" and "$command" in config.root.by_key:
        yield report(
            fsdp,
            f"ms-swift sets {_VARIABLE} to 1 where it is not set, and refuses 1 with Megatron-FSDP",
            help=f"set {_VARIABLE}=32 before the command",
        )


def _fsdp(config: Config) -> Setting | None:
    keys = {
        "megatron": ("use-megatron-fsdp", "use-torch-fsdp2"),
        "megatron_bridge": ("dist.use_megatron_fsdp", "ddp.use_megatron_fsdp"),
        "ms_swift": ("use_megatron_fsdp",),
    }
    return next((on for key in keys[config.dialect.name] if (on := config.on(key)) is not None), None)


RULE = Rule(
    code="PL405",
    name="fsdp-with-one-device-connection",
    severity=Severity.ERROR,
    summary="FSDP is on, and CUDA_DEVICE_MAX_CONNECTIONS is 1.",
    why="One connection puts all work of a GPU in one queue, which tensor parallelism needs for its order and FSDP "
    "cannot have: gathering the next layer's parameters would wait for this layer's work. The frameworks assert that "
    "it is not 1. Scripts for tensor parallelism set it, and are copied; ms-swift sets it itself.",
    instead="`CUDA_DEVICE_MAX_CONNECTIONS=32`, or no such variable.",
    sources=(
        Source(title="Megatron-LM, megatron-core 0.19.2", where="megatron/training/arguments.py: validate_args"),
        Source(title="Megatron-Bridge 0.6.2", where="megatron/bridge/training/config.py"),
        Source(title="ms-swift 4.6.0", where="swift/megatron/arguments/megatron_args.py: _check_megatron_fsdp"),
    ),
    find=find,
    dialects=("megatron", "megatron_bridge", "ms_swift"),
)
