"""A key that the release to check against has ceased to know, and refuses."""

from collections.abc import Iterator

from planner.configs.config import Config
from planner.configs.renames import refused_keys
from planner.diagnostics import FixSafety, Report, Rule, Severity, Source


def find(config: Config) -> Iterator[Report]:
    """A report for each key that the run's release has removed and refuses."""
    return refused_keys(config, is_certain=True)


RULE = Rule(
    code="KEY004",
    name="removed-key",
    severity=Severity.ERROR,
    summary="A key that the framework removed, and refuses in the release that the run has.",
    why="The config was written for an older release. The run ends where the config is read. That the run has a "
    "release which refuses the key is certain where `target-version` says so, or where the config has another key that "
    "came with that release or later; else `removed-key-of-older-releases` reports it.",
    instead="The key that took its place, where there is one. For an older release, say so: `--target-version "
    "transformers=4.46`.",
    sources=(Source(title="transformers 5.0", where="MIGRATION_GUIDE_V5.md"),),
    find=find,
    fix=FixSafety.SAFE,
)
