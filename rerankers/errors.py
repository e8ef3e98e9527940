"""The error that this package raises for mistakes of its users, and checks of settings."""

import sys
import warnings
from collections.abc import Sequence
from typing import Any


class RerankerError(Exception):
    """A checkpoint, a vocabulary or a score cannot be used as it is.

    The message is for a person: what was wrong, where, and what to do about it.
    """


def warn(message: str) -> None:
    """A RuntimeWarning at the first caller outside of this package."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] == "rerankers":
        level, frame = level + 1, frame.f_back
    warnings.warn(message, RuntimeWarning, stacklevel=level)


def require_choice(name: str, given: str, choices: Sequence[str]) -> None:
    """Raise RerankerError for a setting that is not one of its named values."""
    _require(name, repr(given), given in choices, f"one of {', '.join(choices)}")


def require_at_least(settings: Any, **least: int) -> None:
    """Raise RerankerError for a setting below its least value."""
    for name, value in least.items():
        given = getattr(settings, name)
        _require(name, given, given >= value, f"{value} or more")


def require_above_zero(settings: Any, *names: str) -> None:
    """Raise RerankerError for a setting of 0 or less."""
    for name in names:
        given = getattr(settings, name)
        _require(name, given, given > 0, "one above 0")


def _require(name: str, given: object, is_met: bool, expected: str) -> None:
    if not is_met:
        raise RerankerError(f"setting {name}: found {given}, expected {expected}")
