"""What .gitignore files leave out, as git reads them: https://git-scm.com/docs/gitignore (2.43).

Left out: core.excludesFile, which belongs to one person, and that git goes on to track what it has tracked before.
"""

import os
import re
from collections.abc import Iterator

from planner.records import record

GITIGNORE = ".gitignore"
_MARKER = ".git"
_OWN_EXCLUDES = os.path.join(_MARKER, "info", "exclude")


@record
class _Pattern:
    """A line: what it matches, relative to the directory of its file, and what that means."""

    regex: re.Pattern[str]
    is_ignored: bool
    only_directories: bool
    only_names: bool


@record
class Ignores:
    """What holds in a directory: the patterns of its own file and of those above it.

    Attributes:
        directory: Absolute path of the directory that the patterns are relative to.
        patterns: In the order of the file.
        above: What holds in the directories above, and is asked where no pattern here matches.
    """

    directory: str
    patterns: tuple[_Pattern, ...]
    above: "Ignores | None"


def ignores_at(directory: str) -> Ignores | None:
    """What holds in a directory, from the root of its git repository on, if it is in one."""
    directory = os.path.abspath(directory)
    outer = [directory]
    while not os.path.exists(os.path.join(outer[-1], _MARKER)):
        above = os.path.dirname(outer[-1])
        if above == outer[-1]:
            return below(directory, None)  # in no repository: a .gitignore is heeded all the same
        outer.append(above)
    ignores = _with_file(outer[-1], _OWN_EXCLUDES, None)
    for inner in reversed(outer):
        ignores = below(inner, ignores)
    return ignores


def below(directory: str, above: Ignores | None) -> Ignores | None:
    """What holds in a directory, given what holds above it."""
    return _with_file(directory, GITIGNORE, above)


def is_ignored(ignores: Ignores | None, path: str, *, is_directory: bool) -> bool:
    """Whether a file or directory of the ignores' directory, or of one below, is left out. The path is absolute."""
    name = os.path.basename(path)
    while ignores is not None:
        relative = path[len(ignores.directory.rstrip(os.sep)) + 1 :].replace(os.sep, "/")
        for pattern in reversed(ignores.patterns):
            if pattern.only_directories and not is_directory:
                continue
            if pattern.regex.fullmatch(name if pattern.only_names else relative):
                return pattern.is_ignored
        ignores = ignores.above
    return False


def _with_file(directory: str, name: str, above: Ignores | None) -> Ignores | None:
    try:
        with open(os.path.join(directory, name), "rb") as file:
            lines = file.read().decode("utf-8-sig", errors="replace").splitlines()
    except OSError:  # there is none, or git could not read it either
        return above
    patterns = tuple(_patterns(lines))
    return Ignores(directory=directory, patterns=patterns, above=above) if patterns else above


def _patterns(lines: list[str]) -> Iterator[_Pattern]:
    for line in lines:
        text = re.sub(r"(?<!\\) +$", "", line)
        if not text or text.startswith("#"):
            continue
        is_ignored = not text.startswith("!")
        text = text if is_ignored else text[1:]
        only_directories = text.endswith("/")
        text = text.removesuffix("/")
        regex = _regex(text.removeprefix("/"))
        if text and regex is not None:
            yield _Pattern(
                regex=regex, is_ignored=is_ignored, only_directories=only_directories, only_names="/" not in text
            )


_TOKENS = re.compile(
    r"""
    (?P<first>\A\*\*/) | (?P<within>/\*\*/) | (?P<last>/\*\*\Z)
    | (?P<set>\[[!^]?+\]?+(?:\\.|[^\]\\])*\])
    | \\(?P<escaped>.) | (?P<stars>\*+) | (?P<any>\?) | (?P<open>[\[\\]) | (?P<plain>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_REGEX_BY_TOKEN = {"first": "(?:.*/)?", "within": "/(?:.*/)?", "last": "/.+", "stars": "[^/]*", "any": "[^/]"}


def _regex(pattern: str) -> re.Pattern[str] | None:
    """The pattern as a regular expression; None for one that can match nothing, such as [z-a] or [a."""
    parts: list[str] = []
    for token in _TOKENS.finditer(pattern):
        kind, text = token.lastgroup or "", token[token.lastgroup or 0]
        if kind == "open":
            return None
        if kind == "set":
            parts.append(_set(text))
        else:
            parts.append(_REGEX_BY_TOKEN.get(kind) or re.escape(text))
    try:
        return re.compile("".join(parts), re.DOTALL)
    except re.error:
        return None


_MEMBER = re.compile(r"\\?(.)", re.DOTALL)


def _set(text: str) -> str:
    """A set such as [!a-z], which never matches a slash."""
    inner = text[1:-1]
    negation = "^" if inner[:1] in ("!", "^") else ""
    inner = inner.removeprefix(inner[: len(negation)])
    escaped = _MEMBER.sub(lambda member: "-" if member[0] == "-" else re.escape(member[1]), inner)
    return f"(?!/)[{negation}{escaped}]"
