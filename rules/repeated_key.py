"""A key that stands twice in one mapping: only the last one counts."""

from collections.abc import Iterator

from planner.configs.config import Config, Setting, report
from planner.configs.edits import remove
from planner.configs.tree import Scalar, SourceFormat
from planner.diagnostics import Fix, FixSafety, Report, Rule, Severity, Source


def find(config: Config) -> Iterator[Report]:
    """A report for each key that a later one of the same name in the same mapping sets again."""
    seen: dict[str, Setting] = {}
    repeated: set[str] = set()
    for setting in config.settings():
        earlier = seen.get(setting.key)
        is_below_repeated = any(setting.key.startswith(f"{key}.") for key in repeated)
        if earlier is not None and not is_below_repeated and config.document.format is not SourceFormat.SHELL:
            repeated.add(setting.key)
            is_same = isinstance(setting.node, Scalar) and earlier.value == setting.value
            what = "the same value" if is_same else "another value, which is the one that counts"
            edits = remove(earlier)
            yield report(
                earlier.at_key,
                f"{setting.key} is set again further down, to {what}",
                help="remove one of the two",
                related=[(setting.at_key, "set again here")],
                fix=Fix(title="Remove this one", safety=FixSafety.SAFE, edits=edits) if is_same else None,
            )
        seen[setting.key] = setting


RULE = Rule(
    code="KEY008",
    name="repeated-key",
    severity=Severity.NO_OP,
    summary="A key that stands twice in one mapping, so that the first one counts for nothing.",
    why="Loaders of YAML and JSON keep the last of repeated keys without a word. Whoever reads the file from above "
    "believes the first.",
    instead="One of the two.",
    sources=(Source(title="PyYAML 6.0", where="yaml/constructor.py: construct_mapping"),),
    find=find,
    fix=FixSafety.SAFE,
)
