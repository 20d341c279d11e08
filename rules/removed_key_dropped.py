"""A key that the release to check against has ceased to read, and drops without a word."""

from collections.abc import Iterator

from planner.configs.config import Config
from planner.configs.renames import dropped_keys
from planner.diagnostics import FixSafety, Report, Rule, Severity, Source


def find(config: Config) -> Iterator[Report]:
    """A report for each key that was removed and is dropped since."""
    return dropped_keys(config)


RULE = Rule(
    code="KEY005",
    name="removed-key-dropped",
    severity=Severity.NO_OP,
    summary="A key that the framework removed, and silently drops in the release that is checked against.",
    why="The config was written for an older release. What the key did is not done any more, and nothing says so.",
    instead="The key that took its place, where there is one. For an older release, say so: "
    "`--target-version axolotl=0.8`.",
    sources=(Source(title="axolotl 067b021", where="src/axolotl/utils/schemas/deprecated.py"),),
    find=find,
    fix=FixSafety.SAFE,
)
