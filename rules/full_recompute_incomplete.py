"""Full recomputation needs to be told how layers are grouped."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.configs.facts import Checkpointing
from planner.configs.megatron import cores
from planner.diagnostics import Report, Rule, Severity, Source


def find(config: Config) -> Iterator[Report]:
    """A report where full recomputation lacks its method or its number of layers."""
    for core in cores(config):
        kind, granularity = core.recompute
        if kind is not Checkpointing.FULL or granularity is None:
            continue
        missing = [name for name in ("recompute_method", "recompute_num_layers") if core.is_off(name)]
        if missing:
            names = " and ".join(core.key(name) for name in missing)
            written = core.get(missing[0])
            yield report(
                granularity,
                f"full recomputation without {names}: Megatron-Core refuses to build the model",
                help=f"set {core.key('recompute_method')} to uniform and {core.key('recompute_num_layers')} to 1, "
                "which recomputes every layer by itself",
                related=[(written, "empty here")] if written is not None else [],
            )


RULE = Rule(
    code="RC401",
    name="full-recompute-incomplete",
    severity=Severity.ERROR,
    summary="Full recomputation is on, without a method or a number of layers.",
    why="Megatron-Core has no default for either: `uniform` recomputes in groups of that many layers, `block` that "
    "many layers of each pipeline stage. The model's configuration raises a ValueError, after all ranks are up.",
    instead="`recompute_method: uniform` with `recompute_num_layers: 1` for the least memory; `block` with a number of "
    "layers to recompute no more than is needed.",
    sources=(
        Source(
            title="Megatron-Core 0.19.2",
            where="megatron/core/transformer/transformer_config.py: TransformerConfig.__post_init__",
        ),
    ),
    find=find,
    dialects=("megatron", "megatron_bridge", "nemo", "ms_swift", "verl"),
)
