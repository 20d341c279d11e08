"""Float8 matrix products whose scaling nobody fuses."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.diagnostics import Report, Rule, Severity, Source

_CONVERTERS = ("float8", "quantize.linear.float8", "quantize.grouped_mm.float8")


def find(config: Config) -> Iterator[Report]:
    """A report where linear layers are converted to float8 and the model is not compiled."""
    converters, compiled = config.get("model.converters"), config.facts.compile
    if converters is None or not isinstance(converters.value, list) or compiled is None or compiled.value:
        return
    if config.on("quantize.linear.float8.emulate") is None and any(name in _CONVERTERS for name in converters.value):
        yield report(
            converters,
            "float8 is slow without torch.compile: every product is preceded by kernels of its own that find scales "
            "and cast",
            help='set enable = true under [compile], with "model" among its components',
            related=[(compiled.setting, "the model is not compiled")],
        )


RULE = Rule(
    code="PR305",
    name="float8-without-compile",
    severity=Severity.WASTE,
    summary="Linear layers are converted to float8, and the model is not compiled.",
    why="Each float8 product needs the largest magnitude of its operands, a scale and a cast. torch.compile fuses them "
    "into the kernels around; run one by one they take more time than the product saves. torchtitan's documentation "
    "calls compilation required for competitive performance.",
    instead="`[compile] enable = true` with `model` among the components, or bfloat16.",
    sources=(Source(title="torchtitan documentation", where="docs/float8.md in pytorch/torchtitan"),),
    find=find,
    dialects=("torchtitan",),
)
