"""FSDP on an accelerator that Lightning does not shard on."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.diagnostics import Report, Rule, Severity, Source


def find(config: Config) -> Iterator[Report]:
    """A report where Lightning's FSDP is to run on something else than a GPU."""
    accelerator = config.get("trainer.accelerator")
    strategy = config.first("trainer.strategy.class_path", "trainer.strategy")
    if accelerator is None or not isinstance(accelerator.value, str) or strategy is None:
        return
    name = str(strategy.value).rpartition(".")[2]
    if name in ("fsdp", "fsdp_cpu_offload", "FSDPStrategy") and accelerator.value in ("cpu", "mps", "tpu"):
        yield report(
            accelerator,
            f"Lightning's FSDP needs a GPU, and accelerator is {accelerator.value}",
            help="set accelerator: gpu, or strategy: ddp",
            related=[(strategy, "FSDP")],
        )


RULE = Rule(
    code="PL310",
    name="fsdp-without-gpu",
    severity=Severity.ERROR,
    summary="Lightning's FSDP is asked for on a CPU, an Apple GPU or a TPU.",
    why="Lightning raises `The strategy fsdp requires a GPU accelerator` when the trainer is made.",
    instead="`accelerator: gpu`, or `strategy: ddp`.",
    sources=(Source(title="Lightning 2.6.6", where="lightning/pytorch/trainer/connectors/accelerator_connector.py"),),
    find=find,
    dialects=("lightning",),
)
