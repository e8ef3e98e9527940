"""The error of this package for mistakes of its users, and its warnings."""

import sys
import warnings

_PACKAGE = "tweetrerank.rerankers"


class RerankerError(Exception):
    """A checkpoint, a vocabulary or an input cannot be used.

    The message is for a person: what was wrong, where, and what to do about it.
    """


def warn(message: str) -> None:
    """Issue a RuntimeWarning at the first caller outside of this package."""
    level = 2
    frame = sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").startswith(_PACKAGE):
        frame = frame.f_back
        level += 1
    warnings.warn(message, RuntimeWarning, stacklevel=level)
