"""Since 1.13 accelerate has Megatron-LM recompute every layer, whatever its own switch says."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.diagnostics import Report, Rule, Severity, Source

_PREFIX = "megatron_lm_config.megatron_lm_"
_FIRST_WITH_FULL = (1, 13, 0)


def find(config: Config) -> Iterator[Report]:
    """A report where the switch is set and full recomputation is the default."""
    switch, granularity = config.get(f"{_PREFIX}recompute_activations"), config.get(f"{_PREFIX}recompute_granularity")
    if config.target < _FIRST_WITH_FULL or config.value("distributed_type") != "MEGATRON_LM":
        return
    if switch is None or switch.value is None or (granularity is not None and granularity.value is not None):
        return
    yield report(
        switch,
        "accelerate reads this switch and hands it to nobody since 1.13: every layer is recomputed in full, which "
        "costs a second forward pass",
        help="for anything else pass MegatronLMPlugin other_megatron_args with recompute_granularity, and None as "
        "recompute_method and recompute_num_layers",
    )


RULE = Rule(
    code="RC406",
    name="recompute-switch-unread-by-launcher",
    severity=Severity.NO_OP,
    summary="megatron_lm_recompute_activations is set, and accelerate no longer hands it to Megatron-LM.",
    why="Until 1.12 the switch meant selective recomputation. Since 1.13 accelerate hands on a granularity, a method "
    "and a number of layers instead, which are `full`, `uniform` and 1 where the file does not say otherwise: each "
    "backward runs the whole forward again, about a third more work, also where the switch is off.",
    instead="`MegatronLMPlugin(other_megatron_args={...})` in the script, which overrides what accelerate hands on.",
    sources=(
        Source(title="accelerate 1.15.0", where="src/accelerate/utils/dataclasses.py: MegatronLMPlugin.__post_init__"),
        Source(title="accelerate 1.12.0, which handed it on", where="src/accelerate/utils/dataclasses.py"),
    ),
    find=find,
    dialects=("accelerate",),
)
