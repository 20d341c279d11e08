"""Comments that silence findings, and the findings about such comments.

    micro_batch_size: 64  # planner: ignore[EV201] measured, it fits     on the line of the finding
    # planner: ignore[RC101, OF102] see the wiki                         alone above a key: its whole block
    # planner: ignore-file[KEY] generated                                anywhere: the whole file

In brackets stand codes, prefixes of codes, or names of rules; what follows is the reason, for people.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence

from planner.configs.tree import Comment, Document, Entry, Mapping, Node
from planner.configs.tree import Sequence as SequenceNode
from planner.diagnostics import Edit, Finding, Fix, FixSafety, Place, Report, Rule
from planner.linting import MARK
from planner.linting.selection import names_rule
from planner.records import record

_FORM = re.compile(r"(?:#+|//+)\s*planner:\s*(?P<verb>[\w-]+)\s*(?P<rules>\[[^\]]*\])?(?P<reason>.*)")
_VERBS = ("ignore", "ignore-file")


@record
class Suppression:
    """A comment that silences findings.

    Attributes:
        comment: The comment.
        names: Codes, prefixes or names of rules.
        start: Findings from this offset on are silenced.
        end: And those before this one.
    """

    comment: Comment
    names: tuple[str, ...]
    start: int
    end: int


@record
class Suppressed:
    """What is left after suppression.

    Attributes:
        findings: Those that no comment silences.
        silenced: Those that one does.
        unused: For each suppression with names that silenced nothing, it and these names.
        malformed: Comments that seem meant to silence something and cannot be read, with what is wrong.
    """

    findings: tuple[Finding, ...]
    silenced: tuple[Finding, ...]
    unused: tuple[tuple[Suppression, tuple[str, ...]], ...]
    malformed: tuple[tuple[Comment, str], ...]


def suppress(document: Document, findings: Sequence[Finding], checked: Iterable[Rule]) -> Suppressed:
    """The findings without those that comments in the document silence.

    Args:
        document: The file that the findings are in.
        findings: Those of this document.
        checked: The rules that ran: a suppression of one that did not run is not unused.
    """
    suppressions, malformed = read_suppressions(document)
    if not suppressions and not malformed:
        return Suppressed(findings=tuple(findings), silenced=(), unused=(), malformed=())
    kept: list[Finding] = []
    silenced: list[Finding] = []
    used: set[tuple[int, str]] = set()
    for finding in findings:
        hits = [
            (number, name)
            for number, suppression in enumerate(suppressions)
            for name in suppression.names
            if _silences(suppression, name, finding)
        ]
        used.update(hits)
        (silenced if hits else kept).append(finding)
    rules = tuple(checked)
    unused = tuple(
        (suppression, names)
        for number, suppression in enumerate(suppressions)
        if (
            names := tuple(
                name
                for name in suppression.names
                if (number, name) not in used and any(names_rule(name, rule) for rule in rules)
            )
        )
    )
    return Suppressed(findings=tuple(kept), silenced=tuple(silenced), unused=unused, malformed=malformed)


def _silences(suppression: Suppression, name: str, finding: Finding) -> bool:
    # A finding in a file that this one refers to has its own comments there.
    is_here = suppression.start <= finding.report.place.start < suppression.end
    return is_here and names_rule(name, finding.rule)


def read_suppressions(document: Document) -> tuple[tuple[Suppression, ...], tuple[tuple[Comment, str], ...]]:
    """The suppressions in a document, and the comments that are nearly ones with what is wrong with them."""
    suppressions: list[Suppression] = []
    malformed: list[tuple[Comment, str]] = []
    for comment in document.comments:
        match = _FORM.match(comment.text) if MARK in comment.text else None
        if match is None:
            continue
        names = tuple(name.strip() for name in (match["rules"] or "[]")[1:-1].split(",") if name.strip())
        if match["verb"] not in _VERBS:
            malformed.append((comment, f"expected planner: ignore[CODE] or ignore-file[CODE], found {match['verb']!r}"))
        elif not names:
            malformed.append((comment, "it names no rule: write the codes in brackets, such as ignore[RC101]"))
        else:
            start, end = _reach(document, comment, match["verb"])
            suppressions.append(Suppression(comment=comment, names=names, start=start, end=end))
    return tuple(suppressions), tuple(malformed)


def _reach(document: Document, comment: Comment, verb: str) -> tuple[int, int]:
    """From where to where a suppression holds: the file, its line, or the block of the key below it."""
    if verb == "ignore-file":
        return 0, len(document.text) + 1
    line, _ = document.position(comment.start)
    line_start = document.line_starts[line - 1]
    line_end = document.line_starts[line] if line < len(document.line_starts) else len(document.text) + 1
    if not comment.alone:
        return line_start, line_end
    below = next((block for block in _blocks(document.root, set()) if block[0] >= line_end), None)
    if below is None:
        return line_start, line_end
    # A block that begins further down than the next line with content is not what the comment stands above.
    start, end = below
    is_next = _only_comments_between(document, line_end, start)
    return (line_start, max(end, start + 1)) if is_next else (line_start, line_end)


def _only_comments_between(document: Document, start: int, end: int) -> bool:
    between = document.text[start : document.line_starts[bisect_right(document.line_starts, end) - 1]]
    return all(not line.strip() or line.lstrip().startswith(("#", "//")) for line in between.splitlines())


def _blocks(node: Node, seen: set[int]) -> Iterator[tuple[int, int]]:
    """Start and end of every entry and list item, in the order of the file, outer before inner."""
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, Mapping):
        for entry in node.entries:
            yield entry.key_start, _end(entry)
            yield from _blocks(entry.value, seen)
    elif isinstance(node, SequenceNode):
        for item in node.items:
            yield item.start, item.end
            yield from _blocks(item, seen)


def _end(entry: Entry) -> int:
    # The value of an alias stands elsewhere, before the key.
    return entry.value.end if entry.value.end > entry.key_end else entry.key_end + 1


def reports_about(document: Document, suppressed: Suppressed) -> tuple[tuple[str, Report], ...]:
    """The name of the rule and the report for each suppression that is unused or cannot be read."""
    unused = [
        (
            "unused-suppression",
            Report(
                place=_place(document, suppression.comment),
                message=f"nothing here is reported by {', '.join(names)}",
                help="remove it from the comment",
                fix=_removal(document, suppression, names),
            ),
        )
        for suppression, names in suppressed.unused
    ]
    malformed = [
        ("malformed-suppression", Report(place=_place(document, comment), message=message))
        for comment, message in suppressed.malformed
    ]
    return (*unused, *malformed)


def _removal(document: Document, suppression: Suppression, unused: tuple[str, ...]) -> Fix:
    """The fix that takes names out of a comment, or the comment away when none is left."""
    comment = suppression.comment
    left = [name for name in suppression.names if name not in unused]
    start, end, text = comment.start, comment.start + len(comment.text), ""
    if left:
        start, end = start + comment.text.index("[") + 1, start + comment.text.index("]")
        text = ", ".join(left)
    elif comment.alone:
        line, _ = document.position(comment.start)
        start = document.line_starts[line - 1]
        end = document.line_starts[line] if line < len(document.line_starts) else len(document.text)
    else:
        start = len(document.text[:start].rstrip(" \t"))
    edit = Edit(document=document, start=start, end=end, text=text)
    return Fix(title=f"Remove {', '.join(unused)}", safety=FixSafety.SAFE, edits=(edit,))


def _place(document: Document, comment: Comment) -> Place:
    return Place(document=document, start=comment.start, end=comment.start + len(comment.text))
