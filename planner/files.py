"""Reading text files within limits, and writing files whole or not at all.

`planner lint` starts through this module, so it imports little.
"""

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from planner.errors import LocatedError, OutputError, SpecError

if TYPE_CHECKING:
    from pathlib import Path

MAX_FILE_BYTES = 4_000_000  # far beyond any config that people write, and read in a moment


def read_text(
    path: "str | Path", *, error_type: type[LocatedError] = SpecError, max_bytes: int = MAX_FILE_BYTES
) -> str:
    """The text of a UTF-8 file of at most `max_bytes`, without a byte-order mark.

    Raises:
        LocatedError: Of ``error_type``, when there is no such file, or it is a directory, too large or not
            UTF-8.
    """
    content = read_bytes(path, error_type=error_type, max_bytes=max_bytes)
    if len(content) > max_bytes:
        raise error_type(f"larger than {max_bytes:,} bytes, which no config file should be", path=str(path))
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise error_type("not UTF-8 text", path=str(path), line=line, hint="save the file as UTF-8") from None


def read_bytes(
    path: "str | Path", *, error_type: type[LocatedError] = SpecError, max_bytes: int = MAX_FILE_BYTES
) -> bytes:
    """What a file begins with: all of it, or one byte more than `max_bytes`, which says that it is larger.

    Raises:
        LocatedError: Of ``error_type``, when there is no such file, or it cannot be read.
    """
    name = str(path)
    try:
        with open(path, "rb") as file:
            return file.read(max_bytes + 1)
    except FileNotFoundError:
        raise error_type("no such file", path=name) from None
    except IsADirectoryError:
        raise error_type("expected a file, found a directory", path=name) from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise error_type(f"cannot be read: {reason}", path=name) from None


def write_whole(path: "str | Path", content: str | bytes) -> None:
    """Write text or bytes to a file beside its place and rename it there, so that no reader ever sees half of it.

    A file that is there keeps its permissions. A link is followed; what is no regular file, such as a pipe, is written
    to and not replaced.

    Raises:
        OutputError: the file cannot be written.
    """
    import tempfile

    target = os.path.realpath(path)
    data = content.encode() if isinstance(content, str) else content
    with _write_errors(path):
        if os.path.exists(target) and not os.path.isfile(target):
            with open(target, "wb") as file:
                file.write(data)
            return
        directory, name = os.path.split(target)
        handle, aside = tempfile.mkstemp(dir=directory, prefix=f".{name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.chmod(aside, stat.S_IMODE(os.stat(target).st_mode) if os.path.exists(target) else 0o666 & ~_umask())
            os.replace(aside, target)
        except BaseException:
            if os.path.exists(aside):
                os.unlink(aside)
            raise


def check_writable(path: "str | Path") -> None:
    """Returns when `write_whole` can write the path; better asked before minutes of work than after.

    Raises:
        OutputError: it cannot be written.
    """
    import tempfile

    target = os.path.realpath(path)
    with _write_errors(path):
        if os.path.isdir(target):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if os.path.isfile(target) or not os.path.exists(target):
            tempfile.TemporaryFile(dir=os.path.dirname(target)).close()


def check_apart(path: "str | Path", read: "Iterable[str | Path]") -> None:
    """Returns when the path, which is to be written, is none of the files that were read.

    Raises:
        OutputError: it is one of them, under this name or another.
    """
    if not os.path.exists(path):
        return
    for other in read:
        if os.path.isfile(other) and os.path.samefile(path, other):
            raise OutputError("is what was read, and would be lost", path=str(path), hint="name another file")


@contextmanager
def _write_errors(path: "str | Path") -> Iterator[None]:
    try:
        yield
    except OSError as error:
        folder = os.path.dirname(path)
        is_absent = error.errno == errno.ENOENT and folder and not os.path.exists(folder)
        reason = f"there is no folder {folder}" if is_absent else error.strerror
        raise OutputError(f"cannot be written: {reason}", path=str(path)) from error


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
