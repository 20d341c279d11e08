"""What a repository wants of the linter: ``[tool.planner.lint]`` in pyproject.toml, or ``[lint]`` in .planner.toml.

For each file, the nearest such file above it counts, and only that one. Its keys are those of `LintConfiguration`, with
hyphens.
"""

import os
from collections.abc import Mapping
from typing import Any

from planner.configs.dialect import Version, parse_version
from planner.diagnostics import Severity
from planner.errors import LocatedError
from planner.linting.selection import SelectionError, check_words
from planner.records import field, record

FILE_NAMES = (".planner.toml", "pyproject.toml")  # in one directory, the first counts


class LintConfigurationError(LocatedError):
    """A configuration of the linter that cannot be used."""


@record
class LintConfiguration:
    """What a repository wants of the linter.

    Attributes:
        path: The file it stands in; None for the defaults.
        select: Only these rules: codes, prefixes of codes, names.
        extend_select: These besides those on by default.
        ignore: Not these.
        per_file_ignores: Not these in files that match, by pattern relative to the configuration's directory.
        exclude: Patterns of files to leave out.
        target_version: By dialect, the release to check against.
        device: The device for rules that need one.
        fail_level: The least severe finding that makes the exit status 1.
        baseline: A file of findings that are known, relative to the configuration's directory.
    """

    path: str | None = None
    select: tuple[str, ...] = ()
    extend_select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    per_file_ignores: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    exclude: tuple[str, ...] = ()
    target_version: Mapping[str, Version] = field(default_factory=dict)
    device: str | None = None
    fail_level: Severity = Severity.WASTE
    baseline: str | None = None

    def ignored_in(self, path: str) -> tuple[str, ...]:
        """The words of all patterns that the file matches."""
        return tuple(
            word for pattern, words in self.per_file_ignores.items() if self._matches(path, pattern) for word in words
        )

    def excludes(self, path: str) -> bool:
        """Whether a file is to be left out."""
        return any(self._matches(path, pattern) for pattern in self.exclude)

    def _matches(self, path: str, pattern: str) -> bool:
        """Whether the file, or a directory that it is in, is what the pattern says; without a slash, at any depth."""
        if self.path is None:
            return False
        from fnmatch import fnmatchcase  # only in repositories with patterns

        parts = os.path.relpath(path, os.path.dirname(self.path)).split(os.sep)
        if parts[0] == os.pardir:
            return False
        if "/" not in pattern.rstrip("/"):
            return any(fnmatchcase(part, pattern.rstrip("/")) for part in parts)
        return any(fnmatchcase("/".join(parts[:end]), pattern.strip("/")) for end in range(1, len(parts) + 1))


def configuration_for(directory: str, known: dict[str, LintConfiguration] | None = None) -> LintConfiguration:
    """The configuration that holds in a directory, which must be absolute.

    Args:
        directory: The directory.
        known: What is known of directories already, and is added to: files of one run are many.

    Raises:
        LintConfigurationError: The nearest one cannot be used.
    """
    known = {} if known is None else known
    if directory not in known:
        above = os.path.dirname(directory)
        found = next(filter(None, (_configuration_in(os.path.join(directory, name)) for name in FILE_NAMES)), None)
        if found is None:
            found = LintConfiguration() if above == directory else configuration_for(above, known)
        known[directory] = found
    return known[directory]


def _configuration_in(path: str) -> LintConfiguration | None:
    try:
        with open(path, "rb") as file:
            content = file.read()
    except OSError:
        return None  # no such file, or not for us to read: the next one above counts
    is_pyproject = os.path.basename(path) == "pyproject.toml"
    if is_pyproject and b"planner" not in content:
        return None
    return read_configuration(content, path)


def read_configuration(content: bytes, path: str) -> LintConfiguration | None:
    """The configuration in a file's content; None for a pyproject.toml without one.

    Raises:
        LintConfigurationError: It cannot be read, or has a key or a value that it should not have.
    """
    import tomllib  # only in repositories that have one

    try:
        data: Any = tomllib.loads(content.decode("utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise LintConfigurationError(f"not valid TOML: {error}", path=path) from None
    prefix = ("tool", "planner", "lint") if os.path.basename(path) == "pyproject.toml" else ("lint",)
    for part in prefix:
        if not isinstance(data, dict) or part not in data:
            return None if os.path.basename(path) == "pyproject.toml" else LintConfiguration(path=path)
        data = data[part]
    return _checked(data, path, ".".join(prefix))


def _checked(data: object, path: str, prefix: str) -> LintConfiguration:
    def fail(key: str, message: str, hint: str | None = None) -> LintConfigurationError:
        return LintConfigurationError(message, path=path, key=f"{prefix}.{key}" if key else prefix, hint=hint)

    if not isinstance(data, dict):
        raise fail("", "expected a table")
    values: dict[str, Any] = {}
    for key, value in data.items():
        if key not in _READERS:
            from planner.validation import did_you_mean

            raise fail(key, "there is no such setting", did_you_mean(key, tuple(_READERS), plural="settings"))
        try:
            values[key.replace("-", "_")] = _READERS[key](value)
        except SelectionError as error:
            raise fail(key, str(error)) from None
        except (TypeError, ValueError) as error:
            raise fail(key, f"expected {error}, found {value!r}") from None
    return LintConfiguration(path=path, **values)


def _texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise TypeError("a list of text")
    return tuple(value)


def _rules(value: object) -> tuple[str, ...]:
    words = _texts(value)
    check_words(words)
    return words


def _per_file(value: object) -> dict[str, tuple[str, ...]]:
    if not isinstance(value, dict):
        raise TypeError("a table from patterns of files to lists of rules")
    return {pattern: _rules(words) for pattern, words in value.items()}


def _versions(value: object) -> dict[str, Version]:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise TypeError('a table from dialects to releases, such as {axolotl = "0.12"}')
    return {dialect: target_version(dialect, text) for dialect, text in value.items()}


def target_version(dialect: str, text: str) -> Version:
    """The release to check a dialect against.

    Raises:
        ValueError: There is no such dialect, or the text is no release; its message completes "expected ...".
    """
    from planner.linting.detection import DIALECTS

    if dialect not in DIALECTS:
        raise ValueError(f"one of the dialects {', '.join(DIALECTS)}")
    if not parse_version(text):
        raise ValueError("a release such as 0.12 or 5.24.0")
    return parse_version(text)


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError("text")
    return value


def _severity(value: object) -> Severity:
    if value not in tuple(Severity):
        raise ValueError(f"one of {', '.join(Severity)}")
    return Severity(str(value))


_READERS: Mapping[str, Any] = {
    "select": _rules,
    "extend-select": _rules,
    "ignore": _rules,
    "per-file-ignores": _per_file,
    "exclude": _texts,
    "target-version": _versions,
    "device": _text,
    "fail-level": _severity,
    "baseline": _text,
}
