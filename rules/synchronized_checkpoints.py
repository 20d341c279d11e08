"""The host waits for the GPU at every checkpoint."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.configs.facts import Checkpointing
from planner.diagnostics import Report, Rule, Severity, Source


def find(config: Config) -> Iterator[Report]:
    """A report where checkpointed layers begin and end with a synchronization."""
    switch, checkpointing = config.on("synchronize_each_layer"), config.facts.checkpointing
    if switch is not None and checkpointing is not None and checkpointing.value is Checkpointing.FULL:
        yield report(
            switch,
            "the host waits for the GPU before and after every checkpointed layer, so that no kernel is queued ahead",
            help="set synchronize_each_layer to false",
        )


RULE = Rule(
    code="RC308",
    name="synchronized-checkpoints",
    severity=Severity.WASTE,
    summary="The host waits for the GPU at the beginning and the end of every checkpointed layer.",
    why="DeepSpeed calls `synchronize()` there, for its timers. The GPU idles while the next layer's kernels are "
    "launched. GPT-NeoX's own configs have the switch on; so this rule speaks only when asked to.",
    instead="`synchronize_each_layer: false`, which is the default.",
    sources=(Source(title="DeepSpeed 0.17.5", where="deepspeed/runtime/activation_checkpointing/checkpointing.py"),),
    find=find,
    dialects=("gpt_neox",),
    opt_in=True,
)
