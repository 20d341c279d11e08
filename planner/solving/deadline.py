"""When to stop. Deadlines are of `time.monotonic`; what notices that one has passed raises, and its caller makes do."""

import math
import time

NEVER = math.inf
PAST = -math.inf


class OutOfTime(Exception):  # noqa: N818  # nothing went wrong
    """The deadline has passed."""


def check(deadline: float) -> None:
    """Go on only if there is time.

    Raises:
        OutOfTime: there is none.
    """
    if time.monotonic() >= deadline:
        raise OutOfTime
