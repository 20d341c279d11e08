"""Which files the paths on a command line mean. Their content is not looked at."""

import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from planner.errors import ConfigError
from planner.linting.sources import format_of
from planner.records import record

# What other tools put into a project, and nobody means by "the configs of this directory".
_OTHERS_DIRECTORIES = frozenset(("node_modules", "site-packages", "__pycache__"))
_VIRTUAL_ENVIRONMENT = "pyvenv.cfg"  # https://docs.python.org/3/library/venv.html: marks one, whatever its name


if TYPE_CHECKING:
    from planner.linting.gitignore import Ignores


@record
class FoundFile:
    """A file to check, as the user would write its path, and whether the user named it."""

    path: str
    is_named: bool


@record
class Discovery:
    """Files in the order of the paths they come from, and directories that could not be listed."""

    files: tuple[FoundFile, ...]
    unreadable: tuple[ConfigError, ...]


def discover(paths: Iterable[str]) -> Discovery:
    """The files that paths mean, each once: a file means itself, a directory the files in it that may be configs.

    Within a directory they are sorted by name. Left out are hidden directories, those of other tools, virtual
    environments, what .gitignore names, and links to directories, so that no loop of links is entered.
    """
    files: dict[str, FoundFile] = {}
    unreadable: list[ConfigError] = []
    for path in paths:
        found = _walk(path, unreadable) if os.path.isdir(path) else (FoundFile(path=path, is_named=True),)
        for file in found:
            files.setdefault(os.path.abspath(file.path), file)
    return Discovery(files=tuple(files.values()), unreadable=tuple(unreadable))


def _walk(root: str, unreadable: list[ConfigError]) -> Iterator[FoundFile]:
    from planner.linting.gitignore import below, ignores_at  # a file that is named needs none of it

    # No recursion: the depth of directories is somebody else's choice.
    stack = [_entries(root, ignores_at(root), unreadable)]
    while stack:
        for entry, ignores in stack[-1]:
            if entry.is_dir(follow_symlinks=False):
                inner = below(os.path.abspath(entry.path), ignores)
                stack.append(_entries(entry.path, inner, unreadable))
                break
            path = os.path.normpath(entry.path)
            yield FoundFile(path=path, is_named=False)
        else:
            stack.pop()


def _entries(
    directory: str, ignores: "Ignores | None", unreadable: list[ConfigError]
) -> Iterator[tuple["os.DirEntry[str]", "Ignores | None"]]:
    """What is to be looked at in a directory: directories to enter, and regular files that may be configs."""
    from planner.linting.gitignore import is_ignored

    try:
        with os.scandir(directory) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        unreadable.append(ConfigError(f"cannot be listed: {error.strerror}", path=directory))
        return
    absolute = os.path.abspath(directory)
    for entry in found:
        is_directory = entry.is_dir(follow_symlinks=False)
        if not (_is_entered(entry) if is_directory else _may_be_config(entry)):
            continue
        if not is_ignored(ignores, os.path.join(absolute, entry.name), is_directory=is_directory):
            yield entry, ignores


def _is_entered(entry: "os.DirEntry[str]") -> bool:
    if entry.name.startswith(".") or entry.name in _OTHERS_DIRECTORIES:
        return False
    return not os.path.exists(os.path.join(entry.path, _VIRTUAL_ENVIRONMENT))


def _may_be_config(entry: "os.DirEntry[str]") -> bool:
    if format_of(entry.name) is None:
        return False
    # Of a link, os.path says no where the entry itself would raise, such as for one that leads to itself.
    return os.path.isfile(entry.path) if entry.is_symlink() else entry.is_file()
