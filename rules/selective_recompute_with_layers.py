"""Selective recomputation has modules, not layers."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.configs.facts import Checkpointing
from planner.configs.megatron import cores
from planner.diagnostics import Report, Rule, Severity, Source


def find(config: Config) -> Iterator[Report]:
    """A report for each setting of full recomputation that stands beside selective recomputation."""
    if config.dialect.name == "nemo" and config.on("model.mcore_gpt") is None:
        return  # NeMo's own layers take both
    for core in cores(config):
        kind, granularity = core.recompute
        if kind is not Checkpointing.SELECTIVE:
            continue
        for name in ("recompute_method", "recompute_num_layers"):
            setting = core.asked(name)
            if setting is not None:
                says = "" if granularity is not None else f", which is {config.dialect.framework}'s default,"
                yield report(
                    setting,
                    f"selective recomputation{says} takes no {core.key(name)}: Megatron-Core refuses the two together",
                    help=f"remove it, or set {core.key('recompute_granularity')} to full if every layer was meant",
                    related=[(granularity, "selective here")] if granularity is not None else [],
                )


RULE = Rule(
    code="RC402",
    name="selective-recompute-with-layers",
    severity=Severity.ERROR,
    summary="Selective recomputation beside a method or a number of layers, which are for full recomputation.",
    why="Selective recomputation names modules of every layer; a method and a number of layers belong to full "
    "recomputation. Megatron-Core raises a ValueError rather than guess which of the two was meant.",
    instead="`recompute_modules` for selective recomputation; `recompute_granularity: full` for whole layers.",
    sources=(
        Source(
            title="Megatron-Core 0.19.2",
            where="megatron/core/transformer/transformer_config.py: TransformerConfig.__post_init__",
        ),
        Source(title="Megatron-LM, megatron-core 0.19.2", where="megatron/training/arguments.py: validate_args"),
        Source(title="ms-swift 4.6.0", where="swift/megatron/arguments/megatron_args.py: __post_init__"),
    ),
    find=find,
    dialects=("megatron", "megatron_bridge", "nemo", "ms_swift", "verl"),
)
