"""An fp8 cache whose scales are all 1."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.diagnostics import Report, Rule, Severity, Source


def find(config: Config) -> Iterator[Report]:
    """A report where keys and values are kept in e4m3 and no file of scales is given."""
    kind = config.get("kv_cache_dtype")
    if kind is not None and kind.value == "fp8_e4m3" and config.get("quantization_param_path") is None:
        yield report(
            kind,
            "keys and values are kept in fp8 with a scale of 1, unless the checkpoint brings scales: what exceeds 448 "
            "is cut off",
            help="give quantization_param_path, use a checkpoint with scales, or fp8_e5m2, whose range is wider",
        )


RULE = Rule(
    code="KV405",
    name="fp8-cache-without-scales",
    severity=Severity.WASTE,
    summary="The cache is in fp8_e4m3, and no scales are given.",
    why="SGLang takes 1 for every scale where neither a file nor the checkpoint has others, which may cost accuracy, "
    "as its documentation says. Checkpoints with scales need no file, which is why this rule has to be asked for.",
    instead="A file of scales, or a checkpoint that has them.",
    sources=(Source(title="SGLang 0.5.23", where="sglang/srt/arg_groups/fields/model.py: quantization_param_path"),),
    find=find,
    dialects=("sglang",),
    opt_in=True,
)
