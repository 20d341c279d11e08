"""What is left of a text where others may read it: no paths of this machine, no tokens, and nothing that could pass for
another line of a log.
"""

import logging
import re
import traceback
from pathlib import Path

# At least two names: "/v1" or "and/or" is no path. What stands in a URL is none either.
_PATH = re.compile(r"(?<![\w/:.<])(?:/[\w.+@~-]+)+/(?=[\w.+@~-])")


_TOKEN = re.compile(r"planner_[\w%-]{20,}")  # as `planner.service.store.tokens` makes them


def without_paths(text: str) -> str:
    """The text with absolute paths cut to their last name: "…/config.json"."""
    return _PATH.sub("…/", text)


def one_line(text: str) -> str:
    """The text for one line of a log: without paths, and with what does not print escaped."""
    return _printable(without_paths(text.strip()))


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


def discreet(record: logging.LogRecord) -> bool:
    """Always true: a filter for the log of requests. It takes tokens out, which come in a URL by mistake, and what does
    not print, which comes as the client's name.
    """
    if isinstance(record.args, tuple):
        record.args = tuple(
            _TOKEN.sub("planner_…", _printable(one)) if isinstance(one, str) else one for one in record.args
        )
    return True


def fault(error: BaseException) -> str:
    """One line about an error that nobody expected, for the operator's log: what, and where in the code."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"fault: {type(error).__name__} at {Path(place.filename).name}:{place.lineno}: {one_line(str(error))}"
