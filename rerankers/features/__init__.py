"""Features of candidates, in families of one subject.

A family sees a topic's whole list, so features may depend on the other candidates. Modules with
families are listed in ``_MODULES``; see :func:`tweetrerank.rerankers.features.candidates.family`. Families of
:data:`tweetrerank.rerankers.features.candidates.PARAMETRIC` have a parameter after a colon: ``signal:rm3``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tweetrerank.rerankers.devices import in_processes, processes
from tweetrerank.rerankers.features import (
    feedback,
    given,
    judged,
    matches,
    meaning,
    quality,
    temporal,
)
from tweetrerank.rerankers.features.candidates import (
    FAMILIES,
    PARAMETRIC,
    CandidateList,
    Family,
)
from tweetrerank.rerankers.features.text_tables import PostTable, WordTable
from tweetrerank.rerankers.pairs import FREQUENCIES, lists_of
from tweetrerank.rerankers.reranker_error import RerankerError

if TYPE_CHECKING:
    from tweetrerank.rerankers.features.recent import RecentPosts
    from tweetrerank.rerankers.pairs import Pairs
    from tweetrerank.rerankers.text.vocabulary import Idf

Floats = npt.NDArray[np.float32]

_MODULES = (feedback, given, judged, matches, meaning, quality, temporal)

MANY = 10_000  # Pairs for each process, which takes half a second for them

DECIMALS = 4
"""Decimals of features where trees read them: no sum's order of additions changes a score."""


class FeatureTable(NamedTuple):
    """Features of P pairs: ``names`` [K] (``family.feature``) and ``values`` [P, K]."""

    names: tuple[str, ...]
    values: npt.NDArray[np.float32]


def families() -> list[str]:
    """Names of all families, with the name of a parameter: ``signal:NAME``."""
    with_parameter = (
        f"{name}:{parameter}" for name, (parameter, _) in PARAMETRIC.items()
    )
    return sorted([*FAMILIES, *with_parameter])


def find(name: str) -> Family:
    """The family of this name, ``family`` or ``family:parameter``.

    Raises RerankerError, which lists all, if there is none, or its parameter is wrong.
    """
    base, colon, parameter = name.partition(":")
    if base in PARAMETRIC:
        return PARAMETRIC[base][1](parameter)
    if base in FAMILIES and not colon:
        return FAMILIES[base]
    expected = f"expected one of {', '.join(families())}"
    if base in FAMILIES:
        expected = f"but {base} takes no parameter; expected {base} alone"
    raise RerankerError(f"found the feature family {name!r}, {expected}")


def names_of(chosen: Sequence[str]) -> tuple[str, ...]:
    """Names of the features of families, ``family.feature``: [K]."""
    return tuple(f"{family}.{name}" for family in chosen for name in find(family).names)


def signals_of(chosen: Sequence[str]) -> set[str]:
    """Names of the signals that families read."""
    return {signal for family in chosen for signal in find(family).signals}


class CandidateLists:
    """The candidates of each query of some pairs, whose features depend on one another.

    Args:
        pairs: P pairs, in any order; those of one query are its list of candidates.
        chosen: families, in the order of the columns; RerankerError if there is no such family.
        recent: posts read before; None reads all.

    Attributes:
        names: of the K features.
        rows: those of each list, by their posts.
    """

    def __init__(
        self,
        pairs: Pairs,
        chosen: Sequence[str],
        idf: Idf,
        recent: RecentPosts | None = None,
    ) -> None:
        self.names, self._pairs = names_of(chosen), pairs
        self._families = [find(family) for family in chosen]
        # A fixed order, as rounding of sums depends on it.
        self.rows = lists_of(pairs.query_index, pairs.post_index) if chosen else []
        if self.rows:
            self._words = recent.words(idf) if recent else WordTable(idf)
            # Without recent ones all are read at once, as queries share posts.
            self._read = (
                recent.reader(pairs, self._words)
                if recent
                else PostTable.read(pairs.texts, pairs.urls, self._words).take
            )

    def features(self, rows: npt.NDArray[np.int64]) -> Floats:
        """[N, K] of one of the lists, rounded."""
        candidates, values = (
            self.candidates(rows),
            np.empty((len(self.names), len(rows)), "f"),
        )
        columns = chain.from_iterable(
            family.columns(candidates) for family in self._families
        )
        for number, column in enumerate(columns):
            values[number] = column
        return values.round(DECIMALS).T

    def candidates(self, rows: npt.NDArray[np.int64]) -> CandidateList:
        """One of the lists."""
        pairs, numbers = self._pairs, self._pairs.post_index[rows]
        query = int(pairs.query_index[rows[0]])
        return CandidateList(
            pairs.queries[query],
            self._read(numbers),
            [pairs.doc_ids[number] for number in numbers.tolist()]
            if pairs.doc_ids
            else [],
            # A mixture reads the first stage's scores in double precision.
            {
                name: signal[rows].astype(np.float32)
                for name, signal in pairs.signals.items()
            },
            self._words,
            pairs.resources[query] if pairs.resources else {},
            [pairs.texts[number] for number in numbers.tolist()],
        )


def of_lists(
    pairs: Pairs,
    chosen: Sequence[str],
    idf: Idf,
    recent: RecentPosts | None = None,
    function: Callable[[Floats], Floats] = np.asarray,
) -> Iterator[tuple[npt.NDArray[np.int64], Floats]]:
    """The rows [N] of each query's pairs, and a ``function`` of their features [N, K]; processes
    share many. The other arguments and errors are those of :class:`CandidateLists`."""

    def compute(rows: npt.NDArray[np.int64] | None) -> Iterator[Any]:
        lists = CandidateLists(
            pairs if rows is None else pairs.alone(rows), chosen, idf, recent
        )
        for own in lists.rows:
            yield own if rows is None else rows[own], function(lists.features(own))

    count = 1 if recent else min(processes(), len(pairs) // MANY)
    rows = lists_of(pairs.query_index) if count > 1 else []
    parts = [np.concatenate(part) for n in range(count) if (part := rows[n::count])]
    return in_processes(compute, parts) if len(parts) > 1 else compute(None)


def table(pairs: Pairs, chosen: Sequence[str], idf: Idf) -> FeatureTable:
    """Features of all pairs; the arguments and errors of :class:`CandidateLists`. ``idf`` is that
    of queries without ``frequencies`` of their own."""
    names, of_query = names_of(chosen), [idf] * len(pairs.queries)
    values = np.zeros((len(pairs), len(names)), dtype=np.float32)
    if pairs.resources:
        of_query = [known.get(FREQUENCIES, idf) for known in pairs.resources]
    for source in dict.fromkeys(of_query):
        has_source = np.array([each is source for each in of_query])
        rows = np.flatnonzero(has_source[pairs.query_index])
        part = pairs if len(rows) == len(pairs) else pairs.alone(rows)
        for own, found in of_lists(part, chosen, source):
            values[rows[own]] = found
    return FeatureTable(names, values)
