"""Plain data parallelism, which torchtitan does not combine with other kinds."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.configs.facts import Sharding
from planner.diagnostics import Report, Rule, Severity, Source


def find(config: Config) -> Iterator[Report]:
    """A report where parameters are replicated, not sharded, beside tensor or pipeline parallelism."""
    replicas, sharding = config.get("parallelism.data_parallel_replicate_degree"), config.facts.sharding
    if replicas is None or not isinstance(replicas.value, int) or replicas.value <= 1 or sharding is None:
        return
    context = config.facts.context_parallel
    if sharding.value is not Sharding.NONE or context is None or context.value > 1:
        return  # context-parallel ranks shard the parameters
    others = [config.facts.tensor_parallel, config.facts.pipeline_parallel]
    found = [other.setting for other in others if other is not None and other.value > 1 and other.setting is not None]
    if found:
        yield report(
            replicas,
            "data parallelism that replicates does not combine with other kinds of parallelism",
            help="set data_parallel_shard_degree to more than 1 or to -1, for sharded replicas",
            related=[*((setting, "the other kind") for setting in found), (sharding.setting, "not sharded")],
        )


RULE = Rule(
    code="PL306",
    name="replication-beside-model-parallelism",
    severity=Severity.ERROR,
    summary="Parameters are replicated among data-parallel ranks, beside tensor or pipeline parallelism.",
    why="Without sharding torchtitan uses DistributedDataParallel, and raises `DDP has not supported > 1D "
    "parallelism`.",
    instead="`data_parallel_shard_degree` above 1, or -1 for all ranks that are left: then each replica is sharded.",
    sources=(Source(title="torchtitan 0.2.2", where="torchtitan/models/llama3/infra/parallelize.py"),),
    find=find,
    dialects=("torchtitan",),
)
