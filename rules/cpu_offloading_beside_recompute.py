"""Transformer Engine's offloading by layer works with neither recomputation nor pipelines."""

from collections.abc import Iterator

from planner.configs.config import Config, Setting, report
from planner.configs.facts import Checkpointing
from planner.configs.megatron import CoreSettings, cores
from planner.diagnostics import Report, Rule, Severity, Source


def find(config: Config) -> Iterator[Report]:
    """A report for each thing that CPU offloading does not work with."""
    for core in cores(config):
        offloading = _offloading(core)
        if offloading is None:
            continue
        kind, granularity = core.recompute
        if kind in (Checkpointing.FULL, Checkpointing.SELECTIVE):
            yield report(
                offloading,
                "Megatron-Core offloads layers only without recomputation, and refuses the two together",
                help=f"remove it or {core.key('recompute_granularity')}; fine-grained-activation-offloading, by "
                "module, works beside selective recomputation",
                related=[(granularity, "recomputation is on here")] if granularity is not None else [],
            )
        stages = core.number("pipeline_model_parallel_size")
        if stages is not None and stages > 1:
            pipeline = core.get("pipeline_model_parallel_size")
            yield report(
                offloading,
                "Megatron-Core has no offloading of layers with pipeline parallelism, and refuses it",
                help="remove it, or set the pipeline-parallel size to 1",
                related=[(pipeline, f"{stages} stages")] if pipeline is not None else [],
            )
        offloaded, layers = core.number("cpu_offloading_num_layers"), core.number("num_layers")
        if offloaded is not None and layers is not None and offloaded >= layers:
            yield report(
                offloading,
                f"of {layers} layers at most {layers - 1} can be offloaded, and Megatron-Core refuses more",
                help=f"set {core.key('cpu_offloading_num_layers')} to {layers - 1} or less",
            )


def _offloading(core: CoreSettings) -> Setting | None:
    asked = core.asked("cpu_offloading")
    if asked is not None:
        return asked
    # Only Megatron-LM's arguments turn the number into the switch.
    layers = core.number("cpu_offloading_num_layers") if core.config.dialect.name == "megatron" else None
    return core.get("cpu_offloading_num_layers") if layers else None


RULE = Rule(
    code="OF401",
    name="cpu-offloading-beside-recompute",
    severity=Severity.ERROR,
    summary="Layers are to be offloaded to the CPU beside recomputation or pipeline parallelism, or all of them are.",
    why="`cpu_offloading` has Transformer Engine copy whole layers' activations to the host. Megatron-Core raises a "
    "ValueError where recomputation or a pipeline is on, or where no layer would stay.",
    instead="One of the two. Offloading by module (`fine_grained_activation_offloading`) works beside both.",
    sources=(
        Source(
            title="Megatron-Core 0.19.2",
            where="megatron/core/transformer/transformer_config.py: TransformerConfig.__post_init__",
        ),
    ),
    find=find,
    dialects=("megatron", "megatron_bridge", "nemo", "verl"),
)
