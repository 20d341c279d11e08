"""Which form a measurement file has, and its rows."""

import csv
from collections.abc import Callable
from pathlib import Path

from benchmarks.measurements import megatron, published
from benchmarks.measurements.row import Row

_MEGATRON_COLUMNS = ("name", "plat", "layers", "tp", "mem_max")


class FileError(Exception):
    """A file that cannot be read; the text is one line that says why."""


def read(path: Path) -> list[Row]:
    """The rows of a file, of whichever form its header shows.

    Raises:
        FileError: it cannot be opened, is not text, or has neither form.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            header = [cell.strip() for cell in next(csv.reader(file), [])]
        return _reader_of(path, header)(path)
    except OSError as error:
        raise FileError(f"{path}: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise FileError(f"{path}: not a CSV file in UTF-8 ({error})") from None


def _reader_of(path: Path, header: list[str]) -> Callable[[Path], list[Row]]:
    if set(published.COLUMNS) <= set(header):
        return published.read
    if set(_MEGATRON_COLUMNS) <= set(header):
        return megatron.read
    lacking = ", ".join(name for name in published.COLUMNS if name not in header)
    raise FileError(f"{path}: of neither form; published figures would also have {lacking}")
