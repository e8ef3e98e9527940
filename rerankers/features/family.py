"""Families of features: declaration and look-up by name."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy.typing as npt

from tweetrerank.rerankers.features.candidates import CandidateList
from tweetrerank.rerankers.reranker_error import RerankerError

Columns = Sequence[npt.NDArray[Any]]  # K features of N candidates, each [N]
Compute = Callable[[CandidateList], Columns]


class Family(NamedTuple):
    """Features of one subject."""

    names: Sequence[str]  # [K]
    signals: Sequence[str]
    """Signals that it reads; see :class:`tweetrerank.rerankers.pairs.Pairs`."""
    columns: Compute


Build = Callable[[str], Family]
"""Parameter -> its family. Raises RerankerError for a wrong parameter."""


class ParametricFamily(NamedTuple):
    """Families that differ in a parameter: ``signal:rm3``, ``signal:bm25``."""

    parameter: str  # Name for messages
    build: Build


FAMILIES: dict[str, Family] = {}
PARAMETRIC: dict[str, ParametricFamily] = {}


def family(names: str, *signals: str) -> Callable[[Compute], Compute]:
    """Register the decorated function as the family of its name.

    Args:
        names: of its features, separated by spaces, in the order of the columns.
        signals: names of the signals that it reads.
    """

    def register(columns: Compute) -> Compute:
        FAMILIES[columns.__name__] = Family(names.split(), signals, columns)
        return columns

    return register


def parametric_family(parameter: str) -> Callable[[Build], Build]:
    """Register the decorated function, which builds a family from a parameter.

    ``parameter``: its name for messages.
    """

    def register(build: Build) -> Build:
        PARAMETRIC[build.__name__] = ParametricFamily(parameter, build)
        return build

    return register


def families() -> list[str]:
    """Return the names of all families; a parameter as in ``signal:NAME``."""
    names = list(FAMILIES)
    for name, parametric in PARAMETRIC.items():
        names.append(f"{name}:{parametric.parameter}")
    return sorted(names)


def find(name: str) -> Family:
    """Return the family of a name, ``family`` or ``family:parameter``.

    Raises RerankerError, with all names, if there is no such family, or its parameter
    is wrong.
    """
    base, colon, parameter = name.partition(":")
    if base in PARAMETRIC:
        return PARAMETRIC[base].build(parameter)
    if base not in FAMILIES:
        expected = f"expected one of {', '.join(families())}"
        raise RerankerError(f"found the feature family {name!r}, {expected}")
    if colon:
        expected = f"but {base} takes no parameter; expected {base} alone"
        raise RerankerError(f"found the feature family {name!r}, {expected}")
    return FAMILIES[base]


def names_of(chosen: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the K features of families: ``family.feature``."""
    names: list[str] = []
    for family_name in chosen:
        names.extend(f"{family_name}.{name}" for name in find(family_name).names)
    return tuple(names)


def signals_of(chosen: Sequence[str]) -> set[str]:
    """Return the names of the signals that families read."""
    signals = set[str]()
    for name in chosen:
        signals.update(find(name).signals)
    return signals
