"""Declare families of features, and find them by name."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy.typing as npt

from tweetrerank.rerankers.features.candidates import CandidateList
from tweetrerank.rerankers.reranker_error import RerankerError

Columns = Sequence[npt.NDArray[Any]]  # K features of N candidates, each [N]
Compute = Callable[[CandidateList], Columns]


class Family(NamedTuple):
    """The features of one subject."""

    names: Sequence[str]  # [K] names of the features
    signals: Sequence[str]
    """Names of the signals that the family reads; see
    :class:`tweetrerank.rerankers.pairs.Pairs`."""
    columns: Compute  # Function that computes the features


Build = Callable[[str], Family]
"""Function that returns the family for a parameter, such as ``rm3``. It raises
RerankerError if the parameter is wrong."""


class ParametricFamily(NamedTuple):
    """Families that differ in a parameter, as ``signal:rm3`` and ``signal:bm25`` do."""

    parameter: str  # What messages call the parameter: NAME in ``signal:NAME``
    build: Build


FAMILIES: dict[str, Family] = {}
PARAMETRIC: dict[str, ParametricFamily] = {}


def family(names: str, *signals: str) -> Callable[[Compute], Compute]:
    """Register the decorated function as a family with the function's name.

    Args:
        names: names of the family's features, separated by spaces, in the order of the
            columns that the function returns.
        signals: names of the signals that the function reads.
    """

    def register(columns: Compute) -> Compute:
        FAMILIES[columns.__name__] = Family(names.split(), signals, columns)
        return columns

    return register


def parametric_family(parameter: str) -> Callable[[Build], Build]:
    """Register the decorated function, which returns the family for a parameter.

    The families are called ``function:parameter``. The argument ``parameter`` is not a
    value of the parameter but a word that stands for it in messages, such as ``NAME``
    in ``signal:NAME``.
    """

    def register(build: Build) -> Build:
        PARAMETRIC[build.__name__] = ParametricFamily(parameter, build)
        return build

    return register


def families() -> list[str]:
    """Return the names of all families, sorted, with parameters as ``signal:NAME``."""
    names = list(FAMILIES)
    for name, parametric in PARAMETRIC.items():
        names.append(f"{name}:{parametric.parameter}")
    return sorted(names)


def find(name: str) -> Family:
    """Return a family by its name, which is ``family`` or ``family:parameter``.

    Raises RerankerError if there is no such family (the message lists all names), or if
    its parameter is wrong, missing or not expected.
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
    """Return the names ``family.feature`` of the K features of some families.

    Raises RerankerError if a family is unknown.
    """
    names: list[str] = []
    for family_name in chosen:
        names.extend(f"{family_name}.{name}" for name in find(family_name).names)
    return tuple(names)


def signals_of(chosen: Sequence[str]) -> set[str]:
    """Return the names of the signals that some families read.

    Raises RerankerError if a family is unknown.
    """
    signals = set[str]()
    for name in chosen:
        signals.update(find(name).signals)
    return signals
