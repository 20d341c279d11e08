"""A run that does not fit the device, by the estimator."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.diagnostics import Report, Rule, Severity, Source


def find(config: Config) -> Iterator[Report]:
    """A report where the run needs more than the device has, even without any fragmentation."""
    prospect = config.prospect(config.facts)
    batch, length = config.facts.micro_batch, config.facts.sequence_length
    if prospect is None or prospect.verdict != "OOM" or batch is None or length is None:
        return
    facts = ((batch, "the micro-batch"), (length, "the longest row"), (config.facts.model, "the model"))
    places = [(fact.setting, what) for fact, what in facts if fact is not None and fact.setting is not None]
    if not places:
        return
    yield report(
        places[0][0],
        f"the {prospect.phase} needs at least {prospect.low_bytes / 1e9:.1f} GB with {batch.value} x {length.value:,} "
        f"tokens, and a process can have {prospect.usable_bytes / 1e9:.1f} GB of {prospect.device}",
        help="`planner estimate` shows what takes the memory and what would change it",
        related=places[1:],
    )


RULE = Rule(
    code="EST001",
    name="predicted-out-of-memory",
    severity=Severity.ERROR,
    summary="The run does not fit the device, by the planner's own estimate.",
    why="The model, its sizes, dtypes, optimizer and sharding are known from the config, so the memory of a step can "
    "be counted before it is run. Rows are taken to be as long as the config lets them be: a run of shorter rows may "
    "live on until the first long batch.",
    instead="A smaller micro-batch, checkpointing, a chunked loss, more shards: `planner estimate` says what each "
    "brings.",
    sources=(Source(title="this planner", where="docs/estimate.md, and docs/handbook.md for its accuracy"),),
    find=find,
    needs_device=True,
)
