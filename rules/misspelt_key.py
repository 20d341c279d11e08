"""A key that the framework drops without a word, and that is nearly one that it reads."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.configs.dialect import UnknownKeys
from planner.configs.edits import rename_key
from planner.configs.keys import UnreadKey, unread_keys
from planner.diagnostics import Fix, FixSafety, Report, Rule, Severity, Source


def find(config: Config) -> Iterator[Report]:
    """A report for each key that is dropped and was meant to be another."""
    for key in unread_keys(config):
        if key.fate is UnknownKeys.DROPPED and key.near:
            name = key.setting.key.rpartition(".")[2]
            yield report(
                key.setting.at_key,
                f"{config.dialect.framework} does not know {name!r} and drops it without a word",
                help=f"did you mean {key.near[0]!r}?",
                fix=renaming(key),
            )


def renaming(key: UnreadKey) -> Fix:
    """The fix that gives a key the name that was meant."""
    return Fix(
        title=f"Rename to {key.near[0]}",
        safety=FixSafety.SAFE if key.is_certain else FixSafety.UNSAFE,
        edits=rename_key(key.setting, key.near[0]),
    )


RULE = Rule(
    code="KEY001",
    name="misspelt-key",
    severity=Severity.NO_OP,
    summary="A key that the framework does not know, silently drops, and that is nearly one that it does know.",
    why="What the key was to switch on stays off, and nothing says so. A published example of axolotl asked for "
    "`context_parapllel_size: 2` and trained without context parallelism.",
    instead="The key that was meant.",
    sources=(Source(title="axolotl 067b021", where="src/axolotl/utils/schemas/*.py: pydantic ignores extra keys"),),
    find=find,
    fix=FixSafety.SAFE,
)
