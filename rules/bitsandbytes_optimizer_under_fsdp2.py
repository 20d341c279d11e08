"""bitsandbytes' optimizers do not work on the sharded parameters of FSDP2."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.configs.sharding import fsdp_version, fsdp_words
from planner.diagnostics import Report, Rule, Severity, Source

# Transformers' names of optimizers that bitsandbytes has. Source: transformers 5.24, trainer_optimizer.py.
_BITSANDBYTES = frozenset(
    (
        "adamw_bnb_8bit",
        "adamw_8bit",
        "ademamix_8bit",
        "lion_8bit",
        "paged_adamw_32bit",
        "paged_adamw_8bit",
        "paged_ademamix_32bit",
        "paged_ademamix_8bit",
        "paged_lion_32bit",
        "paged_lion_8bit",
        "rmsprop_bnb",
        "rmsprop_bnb_8bit",
        "rmsprop_bnb_32bit",
    )
)


def find(config: Config) -> Iterator[Report]:
    """A report where such an optimizer is asked for and FSDP2 is on."""
    optimizer, fsdp = config.get("optim"), config.get("fsdp")
    if optimizer is None or fsdp is None or str(optimizer.value) not in _BITSANDBYTES:
        return
    if fsdp_words(config) and fsdp_version(config) == 2:
        yield report(
            optimizer,
            f"{optimizer.value} is bitsandbytes', whose kernels fail on the DTensor parameters of FSDP2",
            help="adamw_torch_8bit, torchao's, works with FSDP2 and keeps its state in 8 bits too",
            related=[(fsdp, "FSDP is on here, in version 2")],
        )


RULE = Rule(
    code="OP201",
    name="bitsandbytes-optimizer-under-fsdp2",
    severity=Severity.ERROR,
    summary="An optimizer of bitsandbytes is asked for together with FSDP2.",
    why="Its state is allocated like the sharded parameters, as DTensor, and handed to CUDA kernels that expect plain "
    "memory: the first optimizer step, after the first forward and backward, ends with an illegal memory access.",
    instead="`optim: adamw_torch_8bit`, which needs torchao, or `adamw_torch_fused`.",
    sources=(
        Source(title="bitsandbytes #1633", where="https://github.com/bitsandbytes-foundation/bitsandbytes/issues/1633"),
        Source(title="axolotl 067b021", where="src/axolotl/utils/schemas/validation.py: refuses it"),
    ),
    find=find,
    dialects=("transformers", "trl", "llamafactory"),
)
