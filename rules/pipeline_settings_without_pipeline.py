"""Settings of a pipeline or of experts where there are neither."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.diagnostics import Report, Rule, Severity, Source

_SECTIONS = (("pipeline", "pp_size"), ("moe", "ep_size"))


def find(config: Config) -> Iterator[Report]:
    """A report for each section of `distributed` that is not read as its degree is 1."""
    for section, size in _SECTIONS:
        settings, degree = config.get(f"distributed.{section}"), config.get(f"distributed.{size}")
        if settings is None or not isinstance(settings.value, dict) or not settings.value:
            continue
        if degree is None or degree.value in (None, 1):
            yield report(
                settings.at_key,
                f"{size} is 1, and with it everything below {section} is ignored",
                help=f"set {size} to 2 or more, or remove the section",
                related=[(degree, "one rank")] if degree is not None else [],
            )


RULE = Rule(
    code="PL409",
    name="pipeline-settings-without-pipeline",
    severity=Severity.NO_OP,
    summary="Settings of a pipeline or of expert parallelism, whose degree is 1.",
    why="Automodel ignores `distributed.pipeline` without a pipeline, with a warning, and `distributed.moe` without "
    "expert parallelism, without one. Recipes keep such sections for runs that set the size on the command line, "
    "which is why this rule has to be asked for.",
    instead="The size, or no section.",
    sources=(
        Source(title="NeMo Automodel 0.7.0", where="nemo_automodel/recipes/_dist_utils.py: parse_distributed_section"),
    ),
    find=find,
    dialects=("nemo_automodel",),
    opt_in=True,
)
