"""Features of candidates: one file for each family, with the family's name.

A family's file contains

``NAMES``                  names of its K features, with an explanation of each
``SIGNALS``                names of the signals it reads (:attr:`rerankers.pairs.Pairs.signals`)
``compute(candidates)``    features of a topic's N candidates
                           (:class:`~rerankers.features._candidates.CandidateList`): [N, K]

A family sees a topic's whole list, so features may depend on the other candidates.

A file of families with a parameter contains, instead of ``SIGNALS`` and ``compute``,

``PARAMETER``              name of the parameter
``family(parameter)``      an object with the content of a family's file

and its families are called ``file:parameter``: ``signal:rm3``. Files whose names begin with ``_``
are no families; families share their content.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Protocol, cast

import numpy as np
import numpy.typing as npt

from rerankers.devices import in_threads
from rerankers.errors import RerankerError
from rerankers.features._candidates import CandidateList
from rerankers.features._recent import RecentPosts
from rerankers.features._tables import PostTable, WordTable
from rerankers.pairs import lists_of

if TYPE_CHECKING:
    from rerankers.pairs import Pairs
    from rerankers.text.vocabulary import Idf


DECIMALS = 4
"""Decimals of features where trees read them: no sum's order of additions changes a score."""


class Family(Protocol):
    """A file of this folder, or an object that its ``family`` returns."""

    NAMES: tuple[str, ...]
    SIGNALS: tuple[str, ...]

    def compute(self, candidates: CandidateList) -> npt.NDArray[np.float32]:
        """Features of N candidates: [N, K]."""


@dataclass(frozen=True)
class FeatureTable:
    """Features of P pairs: ``names`` [K] (``family.feature``) and ``values`` [P, K]."""

    names: tuple[str, ...]
    values: npt.NDArray[np.float32]


def families() -> list[str]:
    """Names of all families, with the name of a parameter: ``signal:NAME``."""
    return [
        f"{name}:{file.PARAMETER}" if hasattr(file := _file(name), "family") else name
        for name in sorted(_files())
    ]


def find(name: str) -> Family:
    """The family of this name, ``file`` or ``file:parameter``.

    Raises:
        RerankerError: there is no such family (the message lists all), or the parameter is wrong.
    """
    file_name, colon, parameter = name.partition(":")
    if file_name not in _files():
        raise RerankerError(
            f"found the feature family {name!r}, expected one of {', '.join(families())}"
        )
    file = _file(file_name)
    if hasattr(file, "family"):
        return cast(Family, file.family(parameter))
    if colon:
        raise RerankerError(
            f"found the feature family {name!r}, but {file_name} takes no parameter; "
            f"expected {file_name} alone"
        )
    return cast(Family, file)


@cache
def _files() -> set[str]:
    return {m.name for m in pkgutil.iter_modules(__path__) if m.name[0] != "_"}


def _file(name: str) -> ModuleType:
    return importlib.import_module(f"{__name__}.{name}")


def names_of(chosen: Sequence[str]) -> tuple[str, ...]:
    """Names of the features of families, ``family.feature``: [K]."""
    return tuple(f"{family}.{name}" for family in chosen for name in find(family).NAMES)


def signals_of(chosen: Sequence[str]) -> set[str]:
    """Names of the signals that families read."""
    return {signal for family in chosen for signal in find(family).SIGNALS}


class CandidateLists:
    """The candidates of each query of some pairs, whose features depend on one another.

    Args:
        pairs: P pairs, in any order; those of one query are its list of candidates.
        chosen: families, in the order of the columns.
        idf: of words.
        recent: posts read before; None reads all.

    Attributes:
        names: of the K features.
        rows: those of each list, by their posts.

    Raises:
        RerankerError: there is no such family.
    """

    def __init__(
        self,
        pairs: Pairs,
        chosen: Sequence[str],
        idf: Idf,
        recent: RecentPosts | None = None,
    ) -> None:
        self.names = names_of(chosen)
        self._families = [find(family) for family in chosen]
        self._pairs = pairs
        # A fixed order, as rounding of sums depends on it.
        self.rows = lists_of(pairs.query_index, pairs.post_index) if chosen else []
        if self.rows:
            if recent:
                self._words = recent.words(idf)
                self._read = recent.reader(pairs, self._words)
            else:
                # All are read at once, as queries share posts.
                self._words = WordTable(idf)
                self._read = PostTable.read(pairs.texts, pairs.urls, self._words).take

    def features(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """[N, K] of one of the lists, rounded; may be called by several threads."""
        candidates = self.candidates(rows)
        values = np.concatenate([family.compute(candidates) for family in self._families], axis=1)
        return np.round(values, DECIMALS)

    def candidates(self, rows: npt.NDArray[np.int64]) -> CandidateList:
        """One of the lists."""
        pairs, numbers = self._pairs, self._pairs.post_index[rows]
        query = int(pairs.query_index[rows[0]])
        return CandidateList(
            pairs.queries[query],
            self._read(numbers),
            [pairs.doc_ids[number] for number in numbers.tolist()] if pairs.doc_ids else [],
            # A mixture reads the first stage's scores in double precision.
            {name: signal[rows].astype(np.float32) for name, signal in pairs.signals.items()},
            self._words,
            pairs.resources[query] if pairs.resources else {},
            [pairs.texts[number] for number in numbers.tolist()],
        )


def table(
    pairs: Pairs, chosen: Sequence[str], idf: Idf, recent: RecentPosts | None = None
) -> FeatureTable:
    """Features of all pairs; the arguments and errors of :class:`CandidateLists`."""
    lists = CandidateLists(pairs, chosen, idf, recent)
    values = np.zeros((len(pairs), len(lists.names)), dtype=np.float32)

    def compute(rows: npt.NDArray[np.int64]) -> None:
        values[rows] = lists.features(rows)

    in_threads(compute, lists.rows)
    return FeatureTable(lists.names, values)
