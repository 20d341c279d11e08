"""A key that the framework does not know and drops without a word."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.configs.dialect import UnknownKeys
from planner.configs.keys import unread_keys
from planner.diagnostics import Report, Rule, Severity, Source


def find(config: Config) -> Iterator[Report]:
    """A report for each key that is dropped, but those that are misspelt or were removed."""
    for key in unread_keys(config):
        if key.fate is not UnknownKeys.DROPPED or key.near or key.removed_in:
            continue
        if key.setting.value is None:
            continue  # a key left empty asks for nothing
        name = key.setting.key.rpartition(".")[2]
        place = f"it is read as {key.elsewhere}" if key.elsewhere else ""
        later = f"it is read from {key.added_in} on" if key.added_in else ""
        yield report(
            key.setting.at_key,
            f"{config.dialect.framework} does not know {name!r} here and drops it without a word",
            help=later or place,
        )


RULE = Rule(
    code="KEY002",
    name="unknown-key",
    severity=Severity.NO_OP,
    summary="A key that the framework does not know and silently drops.",
    why="What the key was to change stays as it is, and nothing says so. Often it is a key of another framework, or "
    "stands one level too high or too low.",
    instead="The framework's own key in its place. A key that is there for people or other tools can begin "
    "with `x-` or `_`.",
    sources=(Source(title="axolotl 067b021", where="src/axolotl/utils/schemas/*.py: pydantic ignores extra keys"),),
    find=find,
)
