"""Settings that check their own values, such as the hyperparameters of a model."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from tweetrerank.rerankers.reranker_error import RerankerError


def named(**values: Any) -> Mapping[str, Any]:
    """Return configurations or settings by name. The first one is the default."""
    return values


def one_of(*choices: str) -> Any:
    """Declare a setting that must be one of ``choices``. The first is the default."""
    return field(default=choices[0], metadata={"choices": choices})


def at_least(least: float, default: float, most: float = math.inf) -> Any:
    """Declare a setting with a lowest allowed value and perhaps a highest, ``most``."""
    return field(default=default, metadata={"range": (least, most)})


def above_zero(default: float, most: float = math.inf) -> Any:
    """Declare a setting that must be above 0, and perhaps not above ``most``."""
    return at_least(math.nextafter(0, 1), default, most)


@dataclass(frozen=True)
class Checked:
    """Base class of settings, which are checked when an object is made.

    Making an object raises RerankerError if a value or a combination of values is
    impossible. One error lists all such problems. A subclass may change the default of
    a setting, but not its limits.
    """

    def __post_init__(self) -> None:
        problems = list(self.problems())
        if problems:
            raise RerankerError("\n".join(problems))

    def problems(self) -> Iterator[str]:
        """Yield a message for each impossible value."""
        for name, limits in self._limits().items():
            value = getattr(self, name)
            if "choices" in limits and value not in limits["choices"]:
                choices = ", ".join(limits["choices"])
                yield f"setting {name}: found {value!r}, expected one of {choices}"
            if "range" in limits:
                least, most = limits["range"]
                if not (least <= value <= most and value < math.inf):
                    expected = _described_range(least, most)
                    yield f"setting {name}: found {value!r}, expected {expected}"

    def _limits(self) -> dict[str, Mapping[str, Any]]:
        """Return the choices or the range of each setting, by name.

        The limits of a base class override those that a subclass declares.
        """
        limits: dict[str, Mapping[str, Any]] = {}
        for kind in type(self).__mro__:
            if is_dataclass(kind):
                limits.update({item.name: item.metadata for item in fields(kind)})
        return limits


def _described_range(least: float, most: float) -> str:
    """Describe a range for messages: ``a number of at least 2, 64 at most``."""
    text = f"a number of at least {least}"
    if 0 < least < 1:
        text = "a number above 0"
    if most < math.inf:
        text += f", {most} at most"
    return text
