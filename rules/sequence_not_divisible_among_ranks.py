"""A sequence length that ranks can not share evenly."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.diagnostics import Report, Rule, Severity, Source

# Context parallelism gives each rank a chunk from the front and one from the back, so that causal work is even.
_CHUNKS_PER_RANK = 2


def find(config: Config) -> Iterator[Report]:
    """A report where the length is no multiple of the tensor-parallel degree times twice the context-parallel one."""
    length, tensor, context = (
        config.facts.sequence_length,
        config.facts.tensor_parallel,
        config.facts.context_parallel,
    )
    if length is None or tensor is None or context is None or tensor.value < 1 or context.value < 1:
        return
    divisor = tensor.value * (_CHUNKS_PER_RANK * context.value)
    settings = [fact.setting for fact in (tensor, context) if fact.value > 1 and fact.setting is not None]
    if length.value % divisor == 0 or not settings:
        return
    nearest = max(divisor, round(length.value / divisor) * divisor)
    yield report(
        length.setting or settings[0],
        f"seq_len {length.value} is no multiple of {divisor}, the tensor-parallel degree {tensor.value} times twice "
        f"the context-parallel degree {context.value}",
        help=f"use a multiple of {divisor}, such as {nearest}",
        related=[(setting, "divides each sequence") for setting in settings],
    )


RULE = Rule(
    code="PL303",
    name="sequence-not-divisible-among-ranks",
    severity=Severity.ERROR,
    summary="Each sequence is divided among ranks, and its length is no multiple of their number.",
    why="Tensor parallelism divides the norms' and residuals' tokens among its ranks, and context parallelism gives "
    "each of its ranks two chunks. torchtitan stops with an assertion where the length does not come out even.",
    instead="A `seq_len` that is a multiple of `tensor_parallel_degree * 2 * context_parallel_degree`.",
    sources=(
        Source(title="torchtitan 0.2.2", where="torchtitan/distributed/parallel_dims.py, seq_len_divisor"),
        Source(title="torchtitan 0.2.2", where="torchtitan/models/llama3/infra/parallelize.py"),
    ),
    find=find,
    dialects=("torchtitan",),
)
