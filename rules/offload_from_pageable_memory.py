"""DeepSpeed offloads to memory that is not pinned."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.diagnostics import Report, Rule, Severity, Source

_PINNED_SINCE = (0, 19, 5)  # by default; the first release read that does
_PARTS = ("offload_optimizer", "offload_param")


def find(config: Config) -> Iterator[Report]:
    """A report for each part that is offloaded to the host and not pinned."""
    for part in _PARTS:
        device = config.get(f"zero_optimization.{part}.device")
        pinned = config.get(f"zero_optimization.{part}.pin_memory")
        if device is None or device.value != "cpu":
            continue
        if pinned is not None and pinned.value is False:
            yield report(
                pinned,
                f"{part} goes through pageable memory: copies are not asynchronous and wait for the GPU",
                help='set "pin_memory": true; on hosts with little memory left, keep it and ignore this',
                related=[(device, "offloaded here")],
            )
        elif pinned is None and config.target < _PINNED_SINCE:
            release = ".".join(map(str, config.target))
            yield report(
                device,
                f"{part} goes through pageable memory, the default of DeepSpeed {release}: copies wait for the GPU",
                help='add "pin_memory": true beside it',
            )


RULE = Rule(
    code="OF205",
    name="offload-from-pageable-memory",
    severity=Severity.WASTE,
    summary="DeepSpeed offloads to host memory that is not pinned.",
    why="CUDA copies to and from pageable memory through a small pinned buffer of its own, synchronously, so that "
    "neither gradients going out nor parameters coming back overlap with computation. Until 0.19.4 it was the default.",
    instead='`"pin_memory": true`. Pinned memory cannot be paged out, and needs a high `ulimit -l`.',
    sources=(
        Source(title="DeepSpeed 0.19.8", where="deepspeed/runtime/zero/offload_config.py: pin_memory"),
        Source(
            title="CUDA C++ Best Practices Guide",
            where="https://docs.nvidia.com/cuda/cuda-c-best-practices-guide/index.html#pinned-memory",
        ),
    ),
    find=find,
    dialects=("deepspeed",),
)
