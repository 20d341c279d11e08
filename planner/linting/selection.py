"""Which rules run: codes, prefixes of codes, names, and ALL, where the more particular word has the last say."""

from collections.abc import Iterable, Sequence

from planner.diagnostics import Rule
from planner.errors import PlannerError
from planner.records import record
from planner.rules import RULES, RuleEntry

ALL = "ALL"


class SelectionError(PlannerError):
    """A word that names no rule."""

    def __init__(self, word: str) -> None:
        from difflib import get_close_matches  # only where something is wrong

        near = get_close_matches(word, [name for entry in RULES for name in (entry.code, entry.name)], n=1)
        hint = f"did you mean {near[0]!r}?" if near else "`planner rules` lists them"
        super().__init__(f"{word!r} names no rule; {hint}")
        self.word = word


@record
class Selection:
    """Which rules run.

    Attributes:
        select: Only these; empty for all that are on by default.
        extend: These besides.
        ignore: Not these.
    """

    select: tuple[str, ...] = ()
    extend: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()


def names_rule(word: str, rule: Rule | RuleEntry) -> bool:
    """Whether a word means a rule: its code, the beginning of it, its name, or ALL."""
    return word == rule.name or rule.code.startswith(word) or word == ALL


def _weight(words: Iterable[str], rule: Rule | RuleEntry) -> int:
    """How particular the most particular of the words is that mean the rule; 0 when none does."""
    weights = {ALL: 1, rule.name: len(rule.code) + 1}
    return max((weights.get(word, len(word) + 1) for word in words if names_rule(word, rule)), default=0)


def is_selected(selection: Selection, rule: Rule | RuleEntry) -> bool:
    """Whether the rule runs.

    A rule that is opt-in needs its code, its name or a prefix: ALL is asked to be quiet too, so it brings them as well.
    Between selecting and ignoring, the more particular word counts; ignoring, when they are equal.
    """
    by_default = not selection.select and not rule.opt_in
    wanted = max(_weight((*selection.select, *selection.extend), rule), int(by_default))
    return wanted > _weight(selection.ignore, rule)


def check_words(words: Sequence[str]) -> None:
    """Nothing, when each word means a rule.

    Raises:
        SelectionError: One does not.
    """
    for word in words:
        if not (word == ALL or (word and any(entry.code.startswith(word) or entry.name == word for entry in RULES))):
            raise SelectionError(word)
