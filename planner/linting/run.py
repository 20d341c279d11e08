"""Checks the files that paths mean: what `planner lint` and `planner.lint` do.

Nothing is printed or written here: a run says which texts fixing has changed, and the command writes them.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from typing import TYPE_CHECKING

from planner.configs.dialect import Version
from planner.diagnostics import Finding, FixSafety
from planner.errors import ConfigError
from planner.files import read_bytes
from planner.linting.configuration import LintConfiguration, configuration_for, target_version
from planner.linting.discovery import FoundFile, discover
from planner.linting.engine import Options, lint_text
from planner.linting.selection import Selection, check_words, is_selected
from planner.linting.sources import MAX_FILE_BYTES, SourceError, decode, format_of
from planner.records import field, record
from planner.rules import RuleEntry

if TYPE_CHECKING:
    from planner.device import DeviceProfile


@record
class Request:
    """What is asked of a run. It goes before what configuration files say.

    Attributes:
        selection: Rules to run. Where it selects, what configuration files select and ignore does not count.
        dialect: The dialect to take every file for, or None to recognise it.
        target_versions: By dialect, the release to check against.
        device: The device for rules that need one.
        skip_unknown: Whether files that are named are treated as those of a directory: what is excluded, is of no
            dialect, or cannot be read and looks like none, is left out without a word.
        is_isolated: Whether configuration files do not count.
        reads_files: Whether files that a config names are read.
        fix: Which fixes to apply: none, the safe ones, or also those that are not.
    """

    selection: Selection = field(default_factory=Selection)
    dialect: str | None = None
    target_versions: Mapping[str, Version] = field(default_factory=dict)
    device: "DeviceProfile | None" = None
    skip_unknown: bool = False
    is_isolated: bool = False
    reads_files: bool = True
    fix: FixSafety | None = None


@record
class Change:
    """What fixing makes of a file.

    Attributes:
        path: The file.
        before: Its text.
        after: Its new text.
        fixed: The findings that are mended.
    """

    path: str
    before: str
    after: str
    fixed: tuple[Finding, ...]


@record
class LintRun:
    """What checking some files has found.

    Attributes:
        directory: Where paths that are not absolute begin.
        findings: File by file, and in the order of each file; those that are left after fixing.
        checked: Paths of the files that are training configs.
        unknown: Paths of files that were named and are of no known dialect.
        unreadable: Files that could not be checked, and why.
        changes: What fixing makes of files that it changes.
    """

    directory: str
    findings: tuple[Finding, ...]
    checked: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    unreadable: tuple[ConfigError, ...] = ()
    changes: tuple[Change, ...] = ()


def lint(
    paths: Iterable[str | os.PathLike[str]],
    *,
    select: Iterable[str] = (),
    extend_select: Iterable[str] = (),
    ignore: Iterable[str] = (),
    dialect: str | None = None,
    target_versions: Mapping[str, str] | None = None,
    device: str | None = None,
    is_isolated: bool = False,
) -> LintRun:
    """What is found in training configs; no file is changed.

    Args:
        paths: Files and directories.
        select: Codes, prefixes of codes or names of the rules to run; none for those that are on by default.
        extend_select: Rules to run besides.
        ignore: Rules not to run.
        dialect: The dialect to take every file for.
        target_versions: By dialect, the release to check against, such as {"axolotl": "0.12"}.
        device: The device for rules that need one, by name or as a profile's file.
        is_isolated: Whether configuration files (.planner.toml, pyproject.toml) do not count.

    Raises:
        SelectionError: A selector means no rule.
        LintConfigurationError: A configuration file cannot be used.
        ValueError: A target version is of no known dialect or no release.
        DeviceError: There is no such device.
    """
    selection = Selection(select=tuple(select), extend=tuple(extend_select), ignore=tuple(ignore))
    check_words((*selection.select, *selection.extend, *selection.ignore))
    versions = {name: target_version(name, text) for name, text in (target_versions or {}).items()}
    request = Request(
        selection=selection,
        dialect=dialect,
        target_versions=versions,
        device=_device(device, ".") if device is not None else None,
        is_isolated=is_isolated,
    )
    return lint_paths((os.fspath(path) for path in paths), request)


def lint_paths(paths: Iterable[str], request: Request) -> LintRun:
    """What is found in files, and in those of directories that are training configs."""
    discovery = discover(paths)
    checker = _Checker(request, discovery.unreadable)
    for file in discovery.files:
        checker.check_file(file)
    return checker.run()


def lint_content(content: bytes, path: str, request: Request) -> LintRun:
    """What is found in the content of a file that need not exist, such as stdin's; it is read as its name says."""
    checker = _Checker(request)
    checker.check_content(content, path, is_meant=True)
    return checker.run()


class _Checker:
    """Collects what is found in one file after the other."""

    def __init__(self, request: Request, unreadable: Iterable[ConfigError] = ()) -> None:
        self.request = request
        self.configurations: dict[str, LintConfiguration] = {}
        # A file that others refer to is checked with each of them: its findings count once.
        self.findings: dict[tuple[str, int, int, str, str], Finding] = {}
        self.checked: list[str] = []
        self.unknown: list[str] = []
        self.unreadable = list(unreadable)
        self.changes: list[Change] = []

    def run(self) -> LintRun:
        return LintRun(
            directory=os.getcwd(),
            findings=tuple(self.findings.values()),
            checked=tuple(self.checked),
            unknown=tuple(self.unknown),
            unreadable=tuple(self.unreadable),
            changes=tuple(self.changes),
        )

    def check_file(self, file: FoundFile) -> None:
        is_meant = file.is_named and not self.request.skip_unknown
        if not is_meant and (format_of(file.path) is None or self.configuration(file.path).excludes(file.path)):
            return
        try:
            _check_regular(file.path)
            content = read_bytes(file.path, error_type=ConfigError, max_bytes=MAX_FILE_BYTES)
        except ConfigError as error:
            self.unreadable.append(error)
            return
        self.check_content(content, file.path, is_meant=is_meant)

    def check_content(self, content: bytes, path: str, *, is_meant: bool) -> None:
        """Checks a file. One that is not meant in particular and is no training config is passed over in silence."""
        if format_of(path) is None:
            self.unknown.append(path)
            return
        text = ""
        try:
            text = decode(content)
            findings = self.lint_text(text, path)
        except SourceError as error:
            if is_meant or _looks_like_config(text, path):
                self.unreadable.append(_located(error, content, path))
            return
        if findings is None:
            self.unknown += [path] if is_meant else []
            return
        self.checked.append(path)
        if self.request.fix is not None and any(found.report.fix for found in findings):
            findings = self.fix(text, path, findings)
        for found in findings:
            place = found.report.place
            key = (place.document.path, place.start, place.end, found.rule.code, found.report.message)
            self.findings.setdefault(key, found)

    def lint_text(self, text: str, path: str) -> tuple[Finding, ...] | None:
        return lint_text(text, path, self.options(path))

    def fix(self, text: str, path: str, findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
        """What is left to be found after fixing, which is kept as a change."""
        from planner.linting.fixing import fix_text  # only for those who ask

        def lint(text: str) -> tuple[Finding, ...]:
            return self.lint_text(text, path) or ()

        try:
            fixed = fix_text(text, lint, unsafe=self.request.fix is FixSafety.UNSAFE)
        except SourceError as error:
            message = (
                f"fixing would make it {error.message}; it is left as it is: please report this mistake of planner"
            )
            self.unreadable.append(ConfigError(message, path=path))
            return findings
        if fixed.text != text:
            change = Change(path=path, before=text, after=fixed.text, fixed=fixed.fixed)
            self.changes.append(change)
        return fixed.remaining

    def configuration(self, path: str) -> LintConfiguration:
        return (
            LintConfiguration()
            if self.request.is_isolated
            else configuration_for(os.path.dirname(os.path.abspath(path)))
        )

    def options(self, path: str) -> Options:
        """What to check in a file."""
        configuration = self.configuration(path)
        asked = self.request.selection
        ignored = (*asked.ignore, *configuration.ignored_in(path))
        selection = (
            Selection(select=asked.select, extend=asked.extend, ignore=ignored)
            if asked.select
            else Selection(
                select=configuration.select,
                extend=(*configuration.extend_select, *asked.extend),
                ignore=(*configuration.ignore, *ignored),
            )
        )
        return Options(
            is_selected=_is_selected_by(selection),
            dialect=self.request.dialect,
            target_versions={**configuration.target_version, **self.request.target_versions},
            device=self.request.device or _device_of(configuration),
            reads_files=self.request.reads_files,
        )


@cache
def _is_selected_by(selection: Selection) -> Callable[[RuleEntry], bool]:
    """Whether a rule runs, worked out once for each rule: files are many."""
    return cache(partial(is_selected, selection))


def _device_of(configuration: LintConfiguration) -> "DeviceProfile | None":
    if configuration.device is None or configuration.path is None:
        return None
    return _device(configuration.device, os.path.dirname(configuration.path))


@cache
def _device(name: str, directory: str) -> "DeviceProfile":
    from planner.device import load_device  # only for those who have one

    return load_device(name, directory=directory)


def _looks_like_config(text: str, path: str) -> bool:
    from planner.linting.likeness import looks_like  # only where something is wrong

    return looks_like(text, path) is not None


def _check_regular(path: str) -> None:
    """Returns unless there is something at the path that need not end, or is never written to."""
    if os.path.exists(path) and not os.path.isfile(path):
        raise ConfigError("expected a file, found a pipe or a device", path=path, hint="- reads standard input")


def _located(error: SourceError, content: bytes, path: str) -> ConfigError:
    if error.offset is None:
        return ConfigError(error.message, path=path)
    before = content.decode(errors="replace")[: error.offset]
    return ConfigError(error.message, path=path, line=before.count("\n") + 1)
