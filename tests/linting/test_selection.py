"""Which rules run, by codes, prefixes and names."""

import pytest

from planner.linting.selection import Selection, SelectionError, check_words, is_selected
from planner.rules import RULES, load_rule

RULE = load_rule(next(entry for entry in RULES if entry.code == "KEY001"))  # misspelt-key, on by default


@pytest.mark.parametrize(
    ("runs", "selection"),
    [
        (True, Selection()),
        (True, Selection(select=("KEY",))),
        (True, Selection(select=("misspelt-key",))),
        (True, Selection(select=("ALL",))),
        (False, Selection(select=("RC",))),
        (True, Selection(select=("RC",), extend=("KEY001",))),
        (False, Selection(ignore=("KEY",))),
        (False, Selection(ignore=("ALL",))),
        (False, Selection(select=("KEY",), ignore=("KEY001",))),
        (True, Selection(select=("KEY001",), ignore=("KEY",))),
        (False, Selection(select=("KEY",), ignore=("KEY",))),
        (True, Selection(select=("misspelt-key",), ignore=("KEY00",))),
        (True, Selection(extend=("KEY001",), ignore=("ALL",))),
    ],
)
def test_the_more_particular_word_counts_and_ignoring_when_equal(runs: bool, selection: Selection) -> None:
    assert runs == is_selected(selection, RULE)


@pytest.mark.parametrize("word", ["", "KEY9", "key001", "misspelled-key", "key"])
def test_a_word_that_names_no_rule_is_an_error(word: str) -> None:
    with pytest.raises(SelectionError):
        check_words(["KEY001", word])


def test_the_error_says_what_may_have_been_meant() -> None:
    with pytest.raises(SelectionError, match="did you mean 'misspelt-key'"):
        check_words(["misspelled-key"])
