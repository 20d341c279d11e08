"""Accelerate refuses to load weights on one rank only where FSDP does not hand them to the others."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.configs.sharding import fsdp_setting
from planner.diagnostics import Report, Rule, Severity, Source


def find(config: Config) -> Iterator[Report]:
    """A report where efficient loading is on, or left on, and sync_module_states is off."""
    loading = fsdp_setting(config, "cpu_ram_efficient_loading")
    sync = fsdp_setting(config, "sync_module_states")
    if config.value("distributed_type") != "FSDP" or sync is None or sync.value is not False:
        return
    if loading is None or loading.value is True:
        told = "" if loading is not None else ", its default"
        yield report(
            sync,
            f"fsdp_cpu_ram_efficient_loading is on{told}: only one rank loads weights, and without "
            "fsdp_sync_module_states the others get none; accelerate launch refuses this",
            help="set fsdp_sync_module_states: true, or fsdp_cpu_ram_efficient_loading: false",
            related=[(loading, "efficient loading is on here")] if loading is not None else [],
        )


RULE = Rule(
    code="PL208",
    name="efficient-loading-without-sync",
    severity=Severity.ERROR,
    summary="fsdp_cpu_ram_efficient_loading is on and fsdp_sync_module_states off.",
    why="accelerate launch raises an error before it starts a process.",
    instead="`fsdp_sync_module_states: true`. With `fsdp_cpu_ram_efficient_loading: false` instead, every rank holds "
    "all weights in host memory while loading.",
    sources=(Source(title="accelerate 1.15", where="accelerate/utils/launch.py: prepare_multi_gpu_env"),),
    find=find,
    dialects=("accelerate",),
)
