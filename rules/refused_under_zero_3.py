"""What LLaMA-Factory refuses while DeepSpeed divides the parameters."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.diagnostics import Report, Rule, Severity, Source

_STAGE = 3
_REASON_BY_KEY = {
    "use_unsloth": "its kernels need whole parameters: set use_unsloth: false, or use a ZeRO-2 config",
    "pure_bf16": "ZeRO-3 keeps float32 parameters itself: set bf16: true instead",
    "use_kt": "experts in host memory cannot be divided: use no DeepSpeed config",
    "pissa_init": "the weights are decomposed before training: run scripts/pissa_init.py first",
    "predict_with_generate": "generation needs whole parameters: use a ZeRO-2 config, or evaluate the loss alone",
}


def find(config: Config) -> Iterator[Report]:
    """A report for each such key that is on beside a DeepSpeed config of stage 3."""
    deepspeed = config.link("deepspeed")
    stage = deepspeed.get("zero_optimization.stage") if deepspeed else None
    if stage is None or stage.value != _STAGE:
        return
    for key, reason in _REASON_BY_KEY.items():
        if on := config.on(key):
            yield report(
                on,
                f"LLaMA-Factory refuses {key} under ZeRO-3",
                help=reason.partition(": ")[2],
                related=[(stage, reason.partition(": ")[0])],
            )


RULE = Rule(
    code="PL102",
    name="refused-under-zero-3",
    severity=Severity.ERROR,
    summary="Unsloth, pure bfloat16 or generation under ZeRO-3.",
    why="Under ZeRO-3 no rank has a whole parameter outside of its layer's forward. LLaMA-Factory refuses what needs "
    "one, after it has read both files.",
    instead="A ZeRO-2 config, or none of these.",
    sources=(Source(title="LLaMA-Factory 0.9.5", where="llamafactory/hparams/parser.py, get_train_args"),),
    find=find,
    dialects=("llamafactory",),
)
