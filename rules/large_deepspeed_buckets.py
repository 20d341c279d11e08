"""DeepSpeed's buffers for gradients take gigabytes of device memory."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.configs.sharding import zero_stage
from planner.diagnostics import Report, Rule, Severity, Source

_ELEMENT_BYTES = 2  # of gradients in 16 bits, as ZeRO-2 and ZeRO-3 hold them
_LARGE_BYTES = 2_000_000_000  # what DeepSpeed's default takes with overlap
_GB = 1_000_000_000
_MOST_ELEMENTS = 10**12  # beyond any GPU's memory
_DOCUMENTED_FACTOR = 4.5  # https://huggingface.co/docs/transformers/deepspeed, "overlap_comm"


def find(config: Config) -> Iterator[Report]:
    """A report where the buckets of ZeRO-2 or 3 reach 2 GB."""
    stage = zero_stage(config)
    bucket, overlap = config.get("zero_optimization.reduce_bucket_size"), config.on("zero_optimization.overlap_comm")
    elements = _elements(config, "zero_optimization.reduce_bucket_size")
    if stage not in (2, 3) or elements is None or config.value("zero_optimization.contiguous_gradients") is False:
        return
    buffers = 2 if stage == 2 and overlap is not None else 1
    size_bytes = buffers * elements * _ELEMENT_BYTES
    where = bucket or overlap
    if size_bytes < _LARGE_BYTES or where is None:
        return
    counted = ""
    gathered = _elements(config, "zero_optimization.allgather_bucket_size")
    if buffers == 2 and gathered is not None:
        documented = _DOCUMENTED_FACTOR * (elements + gathered) * _ELEMENT_BYTES
        counted = f"; with the rest, Transformers' documentation counts {documented / _GB:.2f} GB"
    yield report(
        where,
        f"{buffers} gradient buffer{'s' if buffers > 1 else ''} of {elements:,} elements: "
        f"{size_bytes / _GB:.2f} GB of each GPU{counted}",
        help="a bucket of 5e7 is enough for fast links, and takes a tenth of DeepSpeed's default",
        related=[(overlap, "overlapping needs a second buffer")]
        if overlap is not None and overlap is not where
        else [],
    )


def _elements(config: Config, key: str) -> int | None:
    """A bucket's size, which people write as 5e8; None where it is no size that a buffer can have."""
    number = config.number(key)
    return int(number) if number is not None and 0 < number < _MOST_ELEMENTS else None


RULE = Rule(
    code="OP202",
    name="large-deepspeed-buckets",
    severity=Severity.WASTE,
    summary="The gradient buckets of ZeRO-2 or ZeRO-3 take 2 GB or more.",
    why="DeepSpeed allocates a buffer of reduce_bucket_size elements, and in ZeRO-2 a second one where communication "
    "overlaps: with its default of 5e8 elements, 2 GB in bfloat16, which on small GPUs is a micro-batch. Transformers' "
    "documentation counts 4.5 times both bucket sizes for overlap_comm.",
    instead='A smaller `reduce_bucket_size` and `allgather_bucket_size`, or `"auto"` with Transformers, which takes '
    "the square of the hidden size.",
    sources=(
        Source(title="DeepSpeed 0.19.8", where="deepspeed/runtime/zero/stage_1_and_2.py: setup_buckets"),
        Source(title="Transformers: DeepSpeed", where="https://huggingface.co/docs/transformers/deepspeed"),
    ),
    find=find,
    dialects=("deepspeed",),
    opt_in=True,
)
