"""Settings of recomputation that nothing reads, as another one leaves it off or makes it full."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.configs.facts import Checkpointing
from planner.configs.megatron import CoreSettings, cores
from planner.diagnostics import Report, Rule, Severity, Source

_SETTINGS = ("recompute_method", "recompute_num_layers", "recompute_modules")


def find(config: Config) -> Iterator[Report]:
    """A report for settings of recomputation where it is off, and for modules where it is full."""
    for core in cores(config):
        kind, granularity = core.recompute
        if kind is Checkpointing.NONE:
            yield from _while_off(core)
        modules = core.asked("recompute_modules")
        if kind is Checkpointing.FULL and granularity is not None and modules is not None and _differs(core):
            yield report(
                modules,
                f"{core.key('recompute_modules')} is for selective recomputation; with full recomputation every layer "
                "is recomputed whole, whatever it names",
                help=f"remove it, or set {core.key('recompute_granularity')} to selective",
                related=[(granularity, "full here")],
            )


def _while_off(core: CoreSettings) -> Iterator[Report]:
    asked = [setting for name in _SETTINGS if (setting := core.asked(name)) is not None and _differs(core, name)]
    if asked:
        granularity = core.get("recompute_granularity")
        yield report(
            asked[0],
            f"nothing is recomputed: without {core.key('recompute_granularity')} this has no effect",
            help=f"set {core.key('recompute_granularity')} to full or selective, or remove this",
            related=[(granularity, "off here")] if granularity is not None else [],
        )


def _differs(core: CoreSettings, name: str = "recompute_modules") -> bool:
    """Whether a setting says more than the default: frameworks write it into the configs they generate."""
    setting = core.get(name)
    return setting is None or setting.value != ["core_attn"]


RULE = Rule(
    code="RC403",
    name="recompute-setting-without-effect",
    severity=Severity.NO_OP,
    summary="Settings of recomputation that have no effect beside the granularity.",
    why="Megatron-Core looks at the granularity first. Without one nothing is recomputed, however many layers are "
    "named, and the run needs the memory that was to be saved; with `full`, the list of modules is not read.",
    instead="`recompute_granularity: full` with a method and a number of layers, or `selective` with modules.",
    sources=(
        Source(title="Megatron-Core 0.19.2", where="megatron/core/transformer/transformer_block.py and attention.py"),
    ),
    find=find,
    dialects=("megatron", "megatron_bridge", "nemo", "ms_swift", "verl"),
)
