"""Gradients that torchao moves to the host are overwritten there, not added up."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.diagnostics import Report, Rule, Severity, Source


def find(config: Config) -> Iterator[Report]:
    """A report where gradients are accumulated and offloaded."""
    optimizer, steps = config.facts.optimizer, config.facts.accumulation_steps
    offload = config.on("optimizer.offload_gradients")
    if offload is None or optimizer is None or not optimizer.value.endswith("CPUOffloadOptimizer"):
        return
    if steps is not None and steps.value > 1 and steps.setting is not None:
        yield report(
            offload,
            f"offload_gradients overwrites the gradients on the host: of {steps.value} accumulated micro-batches all "
            "but the last are computed for nothing, without a word",
            help="set offload_gradients: false, or gradient_accumulation_steps: 1",
            related=[(steps.setting, "gradients are accumulated here")],
        )


RULE = Rule(
    code="OP303",
    name="offloaded-gradients-with-accumulation",
    severity=Severity.NO_OP,
    summary="Gradients are accumulated and offloaded to the host, where each micro-batch overwrites the one before.",
    why="torchao's `CPUOffloadOptimizer` with `offload_gradients` copies each gradient over the one on the host and "
    "frees it on the GPU. The optimizer step then sees the last micro-batch only, while all of them were computed.",
    instead="`offload_gradients: false` with accumulation, or one micro-batch per step.",
    sources=(Source(title="torchao 0.7.0", where="torchao/prototype/low_bit_optim/cpu_offload.py, backward_hook"),),
    find=find,
    dialects=("torchtune",),
)
