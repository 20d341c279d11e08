"""What a lint rule is, what it reports, and how a report can be mended.

A rule is a function from a `planner.configs.config.Config` to reports; the engine adds which rule it was, and that is
a finding. Renderers, suppression and the service read findings only.
"""

from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import TYPE_CHECKING

from planner.records import record

if TYPE_CHECKING:
    from planner.configs.config import Config
    from planner.configs.tree import Document


class Severity(StrEnum):
    """How bad a finding is if it is true, the worst first."""

    ERROR = "error"  # the framework will refuse this, or fail
    NO_OP = "no-op"  # something asked for is silently not done
    WASTE = "waste"  # memory or compute is wasted, or at risk

    def is_at_least(self, level: "Severity") -> bool:
        """Whether this is as bad as the level, or worse."""
        ranks = tuple(Severity)
        return ranks.index(self) <= ranks.index(level)


class FixSafety(StrEnum):
    """Whether a fix keeps what the file means to the framework."""

    SAFE = "safe"  # it says the same, or what can only have been meant
    UNSAFE = "unsafe"  # it changes what will be run


@record
class Place:
    """A stretch of a file.

    Attributes:
        document: The file.
        start: Offset of its first character in the document's text.
        end: Offset after its last one.
        key: The dotted key it belongs to, such as "fsdp_config.offload_params"; empty for the file as a whole.
    """

    document: "Document"
    start: int
    end: int
    key: str = ""


@record
class Related:
    """Another place that a finding is about, such as the other key of a contradiction."""

    place: Place
    message: str


@record
class Edit:
    """Replaces the characters from start to end of a document."""

    document: "Document"
    start: int
    end: int
    text: str


@record
class Fix:
    """Edits that belong together; `title` is an imperative, such as "Rename to context_parallel_size"."""

    title: str
    safety: FixSafety
    edits: tuple[Edit, ...]


@record
class Report:
    """What a rule says about one place.

    Attributes:
        place: Where.
        message: What was found and why it matters, with the figure where there is one. No full stop at its end.
        help: What to write instead. Empty when the message says it.
        related: Other places that it is about.
        fix: How it can be mended by itself, if it can.
    """

    place: Place
    message: str
    help: str = ""
    related: tuple[Related, ...] = ()
    fix: Fix | None = None


@record
class Source:
    """Where a rule's claim can be checked: a title with the version it was read in, and an address or file."""

    title: str
    where: str


@record
class Rule:
    """A lint rule. Its examples are the fixtures in tests/rules/data/<name>/.

    Attributes:
        code: Letters for the subject and three digits; never given to another rule.
        name: The pattern objected to, such that "ignore <name>" reads as English; the module's name with hyphens.
        severity: How bad it is.
        summary: One sentence that says what the rule finds.
        why: What it costs, and how that comes about, in one or more paragraphs of Markdown.
        instead: What to write instead.
        sources: At least one.
        find: The rule itself. It reads records and does no I/O, and says nothing when the config does not say enough.
        dialects: The dialects it applies to; empty for all.
        opt_in: Whether it is silent unless selected by name, code or prefix.
        needs_device: Whether it works only with the model and the GPU known.
        fix: How safe the fix is that it offers; None when it offers none.
    """

    code: str
    name: str
    severity: Severity
    summary: str
    why: str
    instead: str
    sources: tuple[Source, ...]
    find: Callable[["Config"], Iterable[Report]]
    dialects: tuple[str, ...] = ()
    opt_in: bool = False
    needs_device: bool = False
    fix: FixSafety | None = None


@record
class Finding:
    """A report, and the rule it is from."""

    rule: Rule
    report: Report
