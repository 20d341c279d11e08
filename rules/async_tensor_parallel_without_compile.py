"""Overlapping tensor parallelism's communication is done by the compiler."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.diagnostics import Report, Rule, Severity, Source


def find(config: Config) -> Iterator[Report]:
    """A report where asynchronous tensor parallelism is on and the model is not compiled."""
    switch = config.on("parallelism.enable_async_tensor_parallel")
    degree, compiled = config.facts.tensor_parallel, config.facts.compile
    if switch is None or degree is None or degree.value <= 1 or compiled is None or compiled.value:
        return
    yield report(
        switch,
        "asynchronous tensor parallelism is a pass of torch.compile, and the model is not compiled",
        help='set enable = true under [compile], with "model" among its components, or remove this key',
        related=[(compiled.setting, "the model is not compiled")],
    )


RULE = Rule(
    code="PL302",
    name="async-tensor-parallel-without-compile",
    severity=Severity.ERROR,
    summary="Asynchronous tensor parallelism is on, and the model is not compiled.",
    why="torch.compile splits matrix products so that their communication runs beside them. torchtitan raises an error "
    "where it has nothing to compile.",
    instead="`[compile] enable = true` with `model` among the components, or plain tensor parallelism.",
    sources=(
        Source(title="torchtitan 0.2.2", where="torchtitan/distributed/tensor_parallel.py, maybe_enable_async_tp"),
    ),
    find=find,
    dialects=("torchtitan",),
)
