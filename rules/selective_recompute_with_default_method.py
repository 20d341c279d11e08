"""accelerate adds a method to selective recomputation, which Megatron-LM refuses."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.diagnostics import Report, Rule, Severity, Source

_KEY = "megatron_lm_config.megatron_lm_recompute_granularity"
_FIRST_WITH_METHOD = (1, 13, 0)


def find(config: Config) -> Iterator[Report]:
    """A report where selective recomputation is asked for through accelerate."""
    granularity = config.get(_KEY)
    if config.target < _FIRST_WITH_METHOD or config.value("distributed_type") != "MEGATRON_LM":
        return
    if granularity is not None and granularity.value == "selective":
        yield report(
            granularity,
            "accelerate hands Megatron-LM the method uniform and one layer where a file has neither, and Megatron-LM "
            "asserts that selective recomputation has no method",
            help="pass MegatronLMPlugin other_megatron_args with None as recompute_method and recompute_num_layers, "
            "or use full",
        )


RULE = Rule(
    code="RC407",
    name="selective-recompute-with-default-method",
    severity=Severity.ERROR,
    summary="Selective recomputation of Megatron-LM is asked for through accelerate, which adds a method to it.",
    why="Since 1.13 accelerate fills in `uniform` and 1 for the method and the number of layers, whatever the "
    "granularity. A file cannot say that there is none, and Megatron-LM stops before training.",
    instead="`full`, or `other_megatron_args` in the script.",
    sources=(
        Source(title="accelerate 1.15.0", where="src/accelerate/utils/dataclasses.py: MegatronLMPlugin.__post_init__"),
        Source(title="Megatron-LM, megatron-core 0.19.2", where="megatron/training/arguments.py: validate_args"),
    ),
    find=find,
    dialects=("accelerate",),
)
