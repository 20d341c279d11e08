"""4-bit weights that one rank alone loads for FSDP2, which then waits for ever."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.diagnostics import Report, Rule, Severity, Source

_SINCE = (0, 19)


def find(config: Config) -> Iterator[Report]:
    """A report where QLoRA runs under FSDP2 and weights are loaded on the first rank."""
    efficient = config.first("fsdp_config.cpu_ram_efficient_loading", "fsdp_config.fsdp_cpu_ram_efficient_loading")
    version = config.first("fsdp_version", "fsdp_config.fsdp_version", "fsdp_config.version")
    four = config.on("load_in_4bit")
    if efficient is None or efficient.value is not True or version is None or four is None:
        return
    if str(version.value) == "2" and config.target >= _SINCE:
        yield report(
            efficient,
            "axolotl refuses cpu_ram_efficient_loading with load_in_4bit under FSDP2: only the first rank would have "
            "packed weights, and the others would wait for shards of another shape",
            help="set cpu_ram_efficient_loading: false, with host memory for one copy of the weights for each rank",
            related=[(four, "4 bits"), (version, "FSDP2")],
        )


RULE = Rule(
    code="PL103",
    name="four-bit-loading-on-one-rank",
    severity=Severity.ERROR,
    summary="QLoRA under FSDP2 with weights that only the first rank loads.",
    why="Quantization packs two weights into a byte and flattens the tensor, on the rank that loads it alone. The "
    "other ranks expect the unpacked shape. axolotl refuses the pair since 0.19; before, loading hung.",
    instead="`cpu_ram_efficient_loading: false`, or FSDP1.",
    sources=(
        Source(
            title="axolotl 0.19.0",
            where="utils/schemas/validation.py, check_fsdp2_cpu_ram_efficient_loading_w_4bit",
        ),
    ),
    find=find,
    dialects=("axolotl",),
)
