"""Liger kernels that do not know of tensor parallelism."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.configs.keys import is_extended
from planner.diagnostics import Report, Rule, Severity, Source

_KERNELS = ("liger_rms_norm", "liger_fused_linear_cross_entropy")
_PLUGIN = "LigerPlugin"
_SINCE = (0, 12)


def find(config: Config) -> Iterator[Report]:
    """A report for each such kernel beside a tensor-parallel degree of 2 or more."""
    degree = config.get("tensor_parallel_size")
    plugins = config.value("plugins")
    names = [str(name).rpartition(".")[2] for name in plugins] if isinstance(plugins, list) else []
    if degree is None or type(degree.value) is not int or degree.value <= 1 or _PLUGIN not in names:
        return
    if is_extended(config) or config.target < _SINCE:
        return
    for key in _KERNELS:
        if kernel := config.on(key):
            yield report(
                kernel.at_key,
                f"axolotl refuses {key} with tensor_parallel_size: {degree.value}: Liger's kernel does not "
                "work on divided tensors",
                help=f"set {key}: false, or divide by dp_shard_size and context_parallel_size instead",
                related=[(degree, "tensor parallelism")],
            )


RULE = Rule(
    code="PL104",
    name="tensor-parallelism-with-liger",
    severity=Severity.ERROR,
    summary="Liger's norm or fused loss beside tensor parallelism.",
    why="The kernels take plain tensors, and tensor parallelism divides them among ranks. axolotl checks that before "
    "training.",
    instead="Liger's other kernels, or another way to divide the model.",
    sources=(
        Source(title="axolotl 0.19.0", where="integrations/liger/args.py"),
        Source(title="Liger-Kernel issue 826", where="https://github.com/linkedin/Liger-Kernel/issues/826"),
    ),
    find=find,
    dialects=("axolotl",),
)
