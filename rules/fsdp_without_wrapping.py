"""FSDP is on, and the whole model is one unit that is gathered at once."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.configs.sharding import fsdp_setting
from planner.configs.tree import Mapping
from planner.diagnostics import Report, Rule, Severity, Source

_NO_WRAP = "NO_WRAP"


def find(config: Config) -> Iterator[Report]:
    """A report where no wrapping policy is set under Accelerate, or it is NO_WRAP."""
    policy = fsdp_setting(config, "auto_wrap_policy")
    if policy is not None:
        if str(policy.value).upper() == _NO_WRAP:
            yield report(policy, _MESSAGE, help=_HELP)
    elif config.dialect.name == "accelerate" and config.value("distributed_type") == "FSDP":
        part = config.get("fsdp_config")
        wrapped = fsdp_setting(config, "transformer_layer_cls_to_wrap")
        if part is not None and isinstance(part.node, Mapping):
            yield report(
                part.at_key,
                f"fsdp_auto_wrap_policy is not set, and NO_WRAP by default: {_MESSAGE}",
                help=_HELP,
                related=[(wrapped, "read only with TRANSFORMER_BASED_WRAP")] if wrapped is not None else [],
            )


_MESSAGE = "the whole model is one FSDP unit, and each GPU gathers all parameters at once in forward and backward"
_HELP = "set fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP"

RULE = Rule(
    code="PL207",
    name="fsdp-without-wrapping",
    severity=Severity.WASTE,
    summary="FSDP has no wrapping policy, so that parameters are not freed layer by layer.",
    why="FSDP gathers the parameters of a unit before it runs, and frees them after it. With one unit, the peak has "
    "the whole model: 16 GB for 8 billion parameters in bfloat16, and nothing overlaps with communication.",
    instead="`fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP`: each decoder layer is a unit.",
    sources=(
        Source(title="accelerate 1.15", where="accelerate/utils/dataclasses.py: FullyShardedDataParallelPlugin"),
        Source(title="PyTorch", where="https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html"),
    ),
    find=find,
    dialects=("accelerate", "transformers_fsdp"),
)
