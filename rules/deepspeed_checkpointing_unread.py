"""The activation_checkpointing block of a DeepSpeed config is read by no part of Transformers."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.configs.sharding import is_for_transformers
from planner.diagnostics import Report, Rule, Severity, Source

_SWITCHES = ("partition_activations", "cpu_checkpointing", "contiguous_memory_optimization")


def find(config: Config) -> Iterator[Report]:
    """A report where the block switches something on in a config for Transformers."""
    on = [setting for name in _SWITCHES if (setting := config.on(f"activation_checkpointing.{name}")) is not None]
    if not on or not is_for_transformers(config):
        return
    names = " and ".join(setting.key.rpartition(".")[2] for setting in on)
    yield report(
        on[0].at_key,
        f"{names} will not be done: only models that call deepspeed.checkpointing themselves read "
        "activation_checkpointing, and those of Transformers do not",
        help="switch checkpointing on in the training arguments, and remove this block",
        related=[(config.named_by, "this config is used here")] if config.named_by else [],
    )


RULE = Rule(
    code="RC202",
    name="deepspeed-checkpointing-unread",
    severity=Severity.NO_OP,
    summary="A DeepSpeed config for Transformers switches something on in activation_checkpointing.",
    why="DeepSpeed reads the block in `deepspeed.checkpointing.configure()` alone, which Megatron-style models call. "
    "Transformers, TRL, Accelerate and axolotl never do: nothing is partitioned, nothing goes to the host, and whether "
    "anything is recomputed is decided by the training arguments.",
    instead="`gradient_checkpointing: true` in the training arguments. To hold checkpoints in host memory: "
    "`activation_offloading: true` with TRL or axolotl, or `activation_checkpointing_kwargs: {offload: true}` with "
    "Transformers from 5.23 on.",
    sources=(
        Source(title="DeepSpeed 0.19.8", where="deepspeed/runtime/activation_checkpointing/checkpointing.py"),
        Source(
            title="Transformers: DeepSpeed",
            where="https://huggingface.co/docs/transformers/deepspeed#gradient-checkpointing",
        ),
    ),
    find=find,
    dialects=("deepspeed",),
)
