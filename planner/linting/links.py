"""Configs that a config names: a DeepSpeed JSON file by its path, or the same keys written inline.

A key whose schema has ``x-link`` names one. A file is looked for where people mean it: beside the config, and in the
folders above it up to the repository's root or the working directory. What lies outside of these is never opened, nor
is anything but a regular file. A name that leads nowhere is no fault that can be seen from here: the run may start
elsewhere, or make the file first.
"""

import os
import stat
from collections.abc import Iterator, Mapping
from functools import cache

from planner.configs.config import Config, Setting
from planner.configs.dialect import load_dialect
from planner.configs.tree import Document, Scalar
from planner.configs.tree import Mapping as MappingNode
from planner.linting.sources import MAX_FILE_BYTES, SourceError, decode, format_of, parse
from planner.records import record

_MAX_FOLDERS = 40  # between a config and the root above it: a bound, far beyond any repository
_REPOSITORY_MARK = ".git"


@record
class Link:
    """A config that another one names.

    Attributes:
        dialect: What its keys are.
        named_by: The key that names it.
        document: Its file; the same where it stands inline.
        root: Where it begins.
    """

    dialect: str
    named_by: Setting
    document: Document
    root: MappingNode


def links(config: Config, *, reads_files: bool) -> Iterator[Link]:
    """The configs that this one has inline, and those that it names as far as they can, and may, be read."""
    for key, dialect in _link_keys(config.dialect.name).items():
        setting = config.get(key)
        if setting is None:
            continue
        document: Document | None = config.document
        root = setting.node
        if isinstance(root, Scalar):
            is_readable = reads_files and isinstance(root.value, str)
            document = _read(str(root.value), config.document.path) if is_readable else None
            root = root if document is None else document.root
        if document is not None and isinstance(root, MappingNode):
            yield Link(dialect=dialect, named_by=setting, document=document, root=root)


@cache
def _link_keys(dialect: str) -> Mapping[str, str]:
    return {key: schema["x-link"] for key, schema in load_dialect(dialect).known_keys() if "x-link" in schema}


def _read(name: str, path: str) -> Document | None:
    """The document of a file that a config at a path names; None where there is none that can be read."""
    source_format = format_of(name)
    found = _find(name, path) if source_format is not None and "\0" not in name else None
    if source_format is None or found is None or os.path.realpath(found) == os.path.realpath(path):
        return None
    try:
        with open(found, "rb") as file:
            return parse(decode(file.read(MAX_FILE_BYTES + 1)), found, source_format)
    except (OSError, SourceError):
        return None  # that file has a finding of its own when it is linted itself


def _find(name: str, path: str) -> str | None:
    """Where the file is, written as the config's path is; None where there is none within the root."""
    folders = list(_folders(os.path.dirname(os.path.abspath(path))))
    for folder in folders:
        found = os.path.normpath(os.path.join(folder, name))
        inside = os.path.realpath(found)
        if os.path.commonpath((inside, os.path.realpath(folders[-1]))) == os.path.realpath(folders[-1]) and _is_file(
            inside
        ):
            return found if os.path.isabs(path) else os.path.relpath(found)
    return None


def _folders(folder: str) -> Iterator[str]:
    """The folder and those above it, up to the repository's root or the working directory; else itself alone."""
    above = [folder]
    while len(above) < _MAX_FOLDERS and os.path.dirname(above[-1]) != above[-1]:
        above.append(os.path.dirname(above[-1]))
    roots = [i for i, one in enumerate(above) if os.path.lexists(os.path.join(one, _REPOSITORY_MARK))]
    here = os.getcwd()
    last = roots[0] if roots else above.index(here) if here in above else 0
    yield from above[: last + 1]


def _is_file(path: str) -> bool:
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False
