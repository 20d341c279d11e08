"""A key that the release to check against has ceased to know, and refuses."""

from collections.abc import Iterator

from planner.configs.config import Config
from planner.configs.dialect import UnknownKeys
from planner.configs.renames import removed_keys
from planner.diagnostics import FixSafety, Report, Rule, Severity, Source


def find(config: Config) -> Iterator[Report]:
    """A report for each key that was removed and is refused since."""
    return removed_keys(config, UnknownKeys.REJECTED, "and the run will not start")


RULE = Rule(
    code="KEY004",
    name="removed-key",
    severity=Severity.ERROR,
    summary="A key that the framework removed, and refuses in the release that is checked against.",
    why="The config was written for an older release. The run ends where the config is read.",
    instead="The key that took its place, where there is one. For an older release, say so: `--target-version "
    "transformers=4.46`.",
    sources=(Source(title="transformers 5.0", where="MIGRATION_GUIDE_V5.md"),),
    find=find,
    fix=FixSafety.SAFE,
)
