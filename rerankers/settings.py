"""Settings that check their values: hyperparameters of models and of their training."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from tweetrerank.rerankers.reranker_error import RerankerError


def named(**values: Any) -> Mapping[str, Any]:
    """Configurations or settings by name; the first configuration is the default."""
    return values


def one_of(*choices: str) -> Any:
    """A setting with named values, the first of them by default."""
    return field(default=choices[0], metadata={"choices": choices})


def at_least(least: float, default: float, most: float = math.inf) -> Any:
    """A setting with a least value, and optionally a greatest."""
    return field(default=default, metadata={"range": (least, most)})


def above_zero(default: float, most: float = math.inf) -> Any:
    """A setting with a value above 0, and optionally a greatest."""
    return at_least(math.nextafter(0, 1), default, most)


@dataclass(frozen=True)
class Checked:
    """Base class of settings.

    Raises RerankerError that names all impossible values and combinations together.
    Limits hold in subclasses, which may have other defaults.
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
        """Name of a setting -> its choices or range.

        The limits of a base class hold, whatever the subclass declares.
        """
        limits: dict[str, Mapping[str, Any]] = {}
        for kind in type(self).__mro__:
            if is_dataclass(kind):
                limits.update({item.name: item.metadata for item in fields(kind)})
        return limits


def _described_range(least: float, most: float) -> str:
    """``a number of at least 2, 64 at most``, for messages."""
    text = f"a number of at least {least}"
    if 0 < least < 1:
        text = "a number above 0"
    if most < math.inf:
        text += f", {most} at most"
    return text
