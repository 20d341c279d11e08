"""Two ways to say how large vLLM's cache may be, of which one is not read."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.diagnostics import Report, Rule, Severity, Source


def find(config: Config) -> Iterator[Report]:
    """A report where the cache's bytes are given beside a share of the GPU."""
    size, share = config.get("kv_cache_memory_bytes"), config.get("gpu_memory_utilization")
    if size is None or share is None or size.value is None or share.value is None:
        return
    yield report(
        share,
        "kv_cache_memory_bytes says how large the cache is, and with it gpu_memory_utilization is ignored",
        help="keep one of the two: bytes where the machine is known, a share where it is not",
        related=[(size, "the cache's size is set here")],
    )


RULE = Rule(
    code="KV401",
    name="cache-bytes-override-utilization",
    severity=Severity.NO_OP,
    summary="gpu_memory_utilization is set beside kv_cache_memory_bytes, which overrides it.",
    why="vLLM measures what is free and takes a share of it only where no size is given. A share that was lowered to "
    "make room for another process makes none.",
    instead="One of the two.",
    sources=(Source(title="vLLM 0.33.0", where="vllm/config/cache.py: CacheConfig.kv_cache_memory_bytes"),),
    find=find,
    dialects=("vllm",),
)
