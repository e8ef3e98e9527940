"""The error that this package raises for its users' mistakes, and its warnings."""

import sys
import warnings

_PACKAGE = "tweetrerank.rerankers"


class RerankerError(Exception):
    """A checkpoint, a vocabulary or an input cannot be used.

    The message tells a person what was wrong, where, and what to do about it.
    """


def warn(message: str) -> None:
    """Issue a RuntimeWarning that points at the first caller outside this package."""
    level = 2
    frame = sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").startswith(_PACKAGE):
        frame = frame.f_back
        level += 1
    warnings.warn(message, RuntimeWarning, stacklevel=level)
