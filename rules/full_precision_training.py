"""Nothing asks for 16-bit computation."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.diagnostics import Report, Rule, Severity, Source


def find(config: Config) -> Iterator[Report]:
    """A report where neither bf16 nor fp16 is on in training arguments, and no DeepSpeed config says otherwise."""
    if (
        config.facts.compute_dtype is not None
        or config.on("use_cpu") is not None
        or config.get("deepspeed") is not None
    ):
        return
    switches = [setting for key in ("bf16", "fp16") if (setting := config.get(key)) is not None]
    if any(setting.value is not False for setting in switches):
        return
    where = switches[0] if switches else config.first("per_device_train_batch_size", "output_dir", "num_train_epochs")
    if where is not None:
        yield report(
            where,
            "neither bf16 nor fp16 is on: activations take 4 bytes each, and matrix products run without 16-bit tensor "
            "cores",
            help="set bf16: true on GPUs since Ampere",
        )


RULE = Rule(
    code="PR203",
    name="full-precision-training",
    severity=Severity.WASTE,
    summary="Neither bf16 nor fp16 is on in training arguments.",
    why="Computing in bfloat16 halves most activations. A launcher's config or a model loaded in bfloat16 can do the "
    "same, which these arguments do not show: hence this rule is silent unless asked for.",
    instead="`bf16: true`.",
    sources=(Source(title="transformers 5.24", where="src/transformers/training_args.py: bf16"),),
    find=find,
    dialects=("transformers", "trl"),
    opt_in=True,
)
