"""Fixes applied to a file's text."""

from hypothesis import given
from hypothesis import strategies as st

from planner.configs.tree import Document, Scalar, SourceFormat
from planner.diagnostics import Edit, Finding, Fix, FixSafety, Place, Report, Rule, Severity, Source
from planner.linting.fixing import apply_edits, fix_text

RULE = Rule(
    code="XX001",
    name="a-rule-of-the-tests",
    severity=Severity.WASTE,
    summary="Finds what a test says.",
    why="",
    instead="",
    sources=(Source(title="none", where="none"),),
    find=lambda config: (),
)


def document(text: str) -> Document:
    return Document(path="config.yaml", text=text, format=SourceFormat.YAML, root=Scalar(0, 0, None))


def finding(source: Document, *edits: tuple[int, int, str], safety: FixSafety = FixSafety.SAFE) -> Finding:
    fix = Fix(
        title="Mend it",
        safety=safety,
        edits=tuple(Edit(document=source, start=start, end=end, text=text) for start, end, text in edits),
    )
    place = Place(document=source, start=edits[0][0], end=edits[0][1])
    return Finding(rule=RULE, report=Report(place=place, message="found", fix=fix))


def test_edits_are_made_at_the_offsets_of_the_old_text() -> None:
    source = document("")
    edits = [Edit(document=source, start=start, end=end, text=text) for start, end, text in [(0, 1, "xx"), (2, 3, "")]]
    assert apply_edits("abcd", edits) == "xxbd"


def test_fixes_that_touch_each_other_are_applied_in_rounds() -> None:
    def lint(text: str) -> tuple[Finding, ...]:
        source = document(text)
        # Each pair of a's becomes one b: pairs overlap, so that all at once cannot be right.
        return tuple(finding(source, (i, i + 2, "b")) for i in range(len(text) - 1) if text[i : i + 2] == "aa")

    fixed = fix_text("aaaa", lint, unsafe=False)
    assert (fixed.text, len(fixed.fixed), fixed.remaining) == ("bb", 2, ())


def test_an_unsafe_fix_needs_to_be_asked_for() -> None:
    def lint(text: str) -> tuple[Finding, ...]:
        return (finding(document(text), (0, 1, "b"), safety=FixSafety.UNSAFE),) if text == "a" else ()

    assert fix_text("a", lint, unsafe=False).text == "a"
    assert len(fix_text("a", lint, unsafe=False).remaining) == 1
    assert fix_text("a", lint, unsafe=True).text == "b"


def test_two_fixes_that_undo_each_other_end() -> None:
    def lint(text: str) -> tuple[Finding, ...]:
        return (finding(document(text), (0, 1, "b" if text == "a" else "a")),)

    assert fix_text("a", lint, unsafe=False).text == "a"


def test_a_fix_for_a_file_that_this_one_refers_to_is_not_applied_here() -> None:
    other = document("other")
    fixed = fix_text("this", lambda text: (finding(other, (0, 1, "b")),), unsafe=True)
    assert (fixed.text, len(fixed.remaining)) == ("this", 1)


def test_two_insertions_at_one_place_are_made_one_after_the_other() -> None:
    def lint(text: str) -> tuple[Finding, ...]:
        missing = [word for word in ("x", "y") if word not in text]
        return tuple(finding(document(text), (0, 0, word)) for word in missing)

    assert fix_text("a", lint, unsafe=False).text == "yxa"


def test_as_many_fixes_as_a_file_has_room_for_are_made_in_one_round() -> None:
    text = "aa " * 30_000  # all against all would take minutes

    def lint(text: str) -> tuple[Finding, ...]:
        source = document(text)
        return tuple(finding(source, (i, i + 2, "b")) for i in range(0, len(text), 3) if text[i : i + 2] == "aa")

    assert fix_text(text, lint, unsafe=False).text == "b " * 30_000


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 3), st.text("xy", max_size=2)), max_size=8))
def test_the_fixes_of_a_round_do_not_touch_and_leave_none_out_that_could_be_made(
    places: list[tuple[int, int, str]],
) -> None:
    source = document("abcdefghijklmnop")
    found = [finding(source, (start, start + length, text)) for start, length, text in places]
    expected: list[Edit] = []  # all against all
    for one in found:
        assert one.report.fix is not None
        (edit,) = one.report.fix.edits
        if edit not in expected and all(not touch(edit, other) for other in expected):
            expected.append(edit)
    rounds = iter([tuple(found), ()])
    fixed = fix_text(source.text, lambda text: next(rounds), unsafe=False)
    assert fixed.text == apply_edits(source.text, expected)


def touch(one: Edit, other: Edit) -> bool:
    if one.start == one.end or other.start == other.end:
        return one.start <= other.end and other.start <= one.end
    return one.start < other.end and other.start < one.end
