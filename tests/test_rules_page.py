"""docs/rules.md and the rules' examples are what the rules and their fixtures say."""

from dev.rules_page import EXAMPLES, PAGE, examples, examples_text, page
from planner.rules import RULES, load_example


def test_the_page_and_the_examples_are_written_from_the_rules_byte_for_byte() -> None:
    found = examples()
    assert EXAMPLES.read_text(encoding="utf-8") == examples_text(found), "python -m dev.rules_page"
    assert PAGE.read_text(encoding="utf-8") == page(found), "python -m dev.rules_page"


def test_every_rule_has_a_section_that_its_line_in_the_table_leads_to() -> None:
    written = PAGE.read_text(encoding="utf-8")
    for entry in RULES:
        assert f"\n## {entry.code} {entry.name}\n" in written
        assert f"| [{entry.code}](#{entry.code.lower()}-{entry.name}) |" in written


def test_an_example_shows_its_own_rule_and_no_other() -> None:
    for entry in RULES:
        shown = load_example(entry.name).findings
        assert f"[{entry.code}]: " in shown
        assert shown.count("]: ") == shown.count(f"[{entry.code}]: ")
