"""A key that the framework does not know and refuses."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.configs.dialect import UnknownKeys
from planner.configs.keys import unread_keys
from planner.diagnostics import FixSafety, Report, Rule, Severity, Source
from planner.rules.misspelt_key import renaming


def find(config: Config) -> Iterator[Report]:
    """A report for each key that the framework refuses, but those that were removed."""
    for key in unread_keys(config):
        if key.fate is not UnknownKeys.REJECTED or key.removed_in:
            continue
        name = key.setting.key.rpartition(".")[2]
        near = f"did you mean {key.near[0]!r}?" if key.near else ""
        place = f"it is read as {key.elsewhere}" if key.elsewhere else ""
        later = f"it is read from {key.added_in} on" if key.added_in else ""
        yield report(
            key.setting.at_key,
            f"{config.dialect.framework} does not know {name!r} here and will not start",
            help=near or later or place,
            fix=renaming(key) if key.near else None,
        )


RULE = Rule(
    code="KEY003",
    name="rejected-key",
    severity=Severity.ERROR,
    summary="A key that the framework does not know and refuses.",
    why="The run ends where the config is read, which on a cluster is after the queue and after the machines are up.",
    instead="The framework's own key, in its place.",
    sources=(
        Source(title="transformers 5.24", where="src/transformers/hf_argparser.py: parse_dict, allow_extra_keys=False"),
    ),
    find=find,
    fix=FixSafety.SAFE,
)
