"""What an interrupt looks like, to us and to who called us."""

INTERRUPTED_STATUS = 130  # 128 + SIGINT, as shells report it
INTERRUPTED = "error: interrupted"


def is_interrupt(error: BaseException) -> bool:
    """Whether an error is what other code made of an interrupt: compiled modules turn it into an ImportError."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, KeyboardInterrupt):
        cause = cause.__cause__ or cause.__context__
    return cause is not None
