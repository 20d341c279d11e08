"""Around code that is not ours: interrupts, exits, warnings, and imports of what may not be installed."""

import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from types import FrameType
from typing import TYPE_CHECKING

from planner.commands.interrupts import INTERRUPTED, INTERRUPTED_STATUS
from planner.commands.output import say
from planner.errors import SpecError
from planner.extras import needs

if TYPE_CHECKING:
    from planner.spec import RunSpec


@contextmanager
def imports(feature: str, extra: str = "solve") -> Iterator[None]:
    """Around imports of an extra: one that is absent is named, and an interrupt ends the process there and then.

    An exception would not do: raised while a compiled module loads, it comes out as an ImportError that has
    lost its cause. Nothing is open yet that ending could leave half done.
    """
    with on_interrupt(end), needs(feature, extra):
        yield


def end(signum: int, frame: FrameType | None) -> None:
    """The signal handler that ends the process there and then."""
    say(INTERRUPTED)
    os._exit(INTERRUPTED_STATUS)


@contextmanager
def second_interrupt_ends() -> Iterator[None]:
    """The first Ctrl-C is an exception, so that what there is can be shown; another one ends the process at once."""

    def interrupt(signum: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, end)
        raise KeyboardInterrupt

    with on_interrupt(interrupt):
        yield


@contextmanager
def on_interrupt(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Ctrl-C is handled so meanwhile, but in a thread: only the main one may set handlers."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def calm(verbose: bool) -> Iterator[None]:
    """While the model's code runs: no warnings or log lines, and what it prints stays out of our results."""
    with redirect_stdout(sys.stderr), nullcontext() if verbose else warnings.catch_warnings():
        if verbose:
            yield
            return
        warnings.simplefilter("ignore")
        before = logging.root.manager.disable
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(before)


@contextmanager
def no_exit(run: "RunSpec") -> Iterator[None]:
    """While the model's code runs: what would end the process silently is an error like any other."""
    try:
        yield
    except (Exception, KeyboardInterrupt):
        raise
    except BaseException as error:  # SystemExit, GeneratorExit, and what test libraries raise to skip
        line = run.lines[("model",)].line if run.lines else None
        what = f"with exit status {error.code or 0}" if isinstance(error, SystemExit) else f"by {type(error).__name__}"
        raise SpecError(f"the model's code ended the program {what}", path=run.path, line=line, key="model") from error
