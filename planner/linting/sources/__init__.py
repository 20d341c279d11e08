"""File text to `planner.configs.tree.Document`, by format. Nothing is executed and no tag makes an object."""

import os
from importlib import import_module

from planner.configs.tree import Document, SourceFormat
from planner.errors import PlannerError

# Far beyond any config that people write, and small enough to be read in a moment.
MAX_FILE_BYTES = 1_000_000
MAX_DEPTH = 100  # of nesting
MAX_NODES = 200_000  # once aliases are expanded: a "billion laughs" file has few nodes and many expansions

FORMAT_BY_SUFFIX = {
    ".yaml": SourceFormat.YAML,
    ".yml": SourceFormat.YAML,
    ".json": SourceFormat.JSON,
    ".jsonc": SourceFormat.JSON,
    ".toml": SourceFormat.TOML,
    ".sh": SourceFormat.SHELL,
    ".bash": SourceFormat.SHELL,
}


def format_of(path: str) -> SourceFormat | None:
    """How a file is written, from the end of its name; None for one that can be no config."""
    return FORMAT_BY_SUFFIX.get(os.path.splitext(path)[1].lower())


class SourceError(PlannerError):
    """A file that cannot be read as what it should be.

    Args:
        message: What is wrong, such as "not valid YAML: ...".
        offset: Where, in characters; None when the file as a whole is meant.
    """

    def __init__(self, message: str, *, offset: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.offset = offset


def decode(data: bytes) -> str:
    """The text of a file in UTF-8, a byte order mark and the ends of lines as they are.

    Raises:
        SourceError: The file is not UTF-8, or larger than any config.
    """
    if len(data) > MAX_FILE_BYTES:
        raise SourceError(f"larger than {MAX_FILE_BYTES:,} bytes, which no config file should be")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        offset = len(data[: error.start].decode())
        raise SourceError(f"not UTF-8: the byte 0x{data[error.start]:02X}, {error.reason}", offset=offset) from None


def parse(text: str, path: str, source_format: SourceFormat) -> Document:
    """The document of a file's text.

    Raises:
        SourceError: The text is not of that format, or is long, nested or repeated beyond all limits.
    """
    if len(text) > MAX_FILE_BYTES:
        raise SourceError(f"more than {MAX_FILE_BYTES:,} characters, which no config file should have")
    forbidden = _forbidden(text)
    if forbidden is not None:
        raise SourceError(f"the character U+{ord(text[forbidden]):04X}, which no text has", offset=forbidden)
    # Imported by name, so that a file costs only its own format's reader.
    reader = import_module(f"planner.linting.sources.{source_format}")
    document: Document = reader.parse(text, path)
    return document


def is_alone(text: str, offset: int) -> bool:
    """Whether nothing but blanks stands before this character on its line."""
    while offset and text[offset - 1] in " \t\ufeff":
        offset -= 1
    return offset == 0 or text[offset - 1] == "\n"


def _forbidden(text: str) -> int | None:
    """The offset of a NUL, which marks binary data, or of half a surrogate pair, which UTF-8 cannot hold; or None."""
    nul = text.find("\0")
    if nul >= 0:
        return nul
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return error.start
    return None
