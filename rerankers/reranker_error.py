"""The error that this package raises for mistakes of its users, and checks of settings."""

import math
import sys
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any


class RerankerError(Exception):
    """A checkpoint, a vocabulary or a score cannot be used as it is. The message is for a person:
    what was wrong, where, and what to do about it."""


def warn(message: str) -> None:
    """A RuntimeWarning at the first caller outside of this package."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").startswith(
        "tweetrerank.rerankers"
    ):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, RuntimeWarning, stacklevel=level)


def named(**values: Any) -> Mapping[str, Any]:
    """Values by name: configurations, of which the first is the default, or settings of some."""
    return values


def one_of(*choices: str) -> Any:
    """A setting with named values, the first of them by default."""
    return field(default=choices[0], metadata={"choices": choices})


def at_least(least: float, default: float, most: float = math.inf) -> Any:
    """A setting with a least value, and perhaps a greatest."""
    return field(default=default, metadata={"range": (least, most)})


def above_zero(default: float, most: float = math.inf) -> Any:
    """A setting with a value above 0, and perhaps a greatest."""
    return at_least(math.nextafter(0, 1), default, most)


@dataclass(frozen=True)
class Checked:
    """Base of settings; RerankerError names all impossible values and combinations at once. Limits
    also hold in subclasses, which may have other defaults."""

    def __post_init__(self) -> None:
        if found := [*self.problems()]:
            raise RerankerError("\n".join(found))

    def problems(self) -> Iterator[str]:
        """A message for each impossible value."""
        kinds = [kind for kind in type(self).__mro__ if is_dataclass(kind)]
        limits = {each.name: each.metadata for kind in kinds for each in fields(kind)}
        for name, limit in limits.items():
            value, (least, most) = getattr(self, name), limit.get("range", (0, 0))
            found, choices = (
                f"setting {name}: found {value!r}, expected ",
                limit.get("choices"),
            )
            if choices and value not in choices:
                yield f"{found}one of {', '.join(choices)}"
            if "range" in limit and not (least <= value <= most and value < math.inf):
                expected = "above 0" if 0 < least < 1 else f"of at least {least}"
                expected += f", {most} at most" if most < math.inf else ""
                yield f"{found}a number {expected}"
