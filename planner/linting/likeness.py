"""What a file that cannot be read as what it should be was probably meant for.

A directory has many files that are not for us and not well-formed, such as templates of another tool: of those nothing
is said. A training config with a slip in its syntax is worth a word.
"""

import re

from planner.configs.tree import Document, Entry, Mapping, Scalar, SourceFormat
from planner.linting.detection import detect
from planner.linting.sources import format_of

# Keys at the top level, as far as a pattern can see them.
_KEYS = {
    SourceFormat.YAML: re.compile(r"^([A-Za-z_][\w.-]*)\s*:", re.MULTILINE),
    SourceFormat.JSON: re.compile(r'"([A-Za-z_][\w.-]*)"\s*:'),
    SourceFormat.TOML: re.compile(r"^(?:\[+\s*)?([A-Za-z_][\w-]*)", re.MULTILINE),
}
# Of Jinja, Helm and the like: such a file becomes a config only once it is filled in.
_TEMPLATE = re.compile(r"\{[{%]")


def looks_like(text: str, path: str) -> str | None:
    """The dialect that the keys of a malformed file are from; None when they are from none, or it is a template."""
    source_format = format_of(path)
    pattern = _KEYS.get(source_format) if source_format else None
    if source_format is None or pattern is None or _TEMPLATE.search(text):
        return None
    entries = [Entry(match[1], match.start(1), match.end(1), _UNKNOWN) for match in pattern.finditer(text)]
    root = Mapping(0, len(text), entries, [])
    return detect(Document(path=path, text=text, format=source_format, root=root), root)


_UNKNOWN = Scalar(0, 0, None)
