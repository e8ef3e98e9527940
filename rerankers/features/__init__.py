"""Compute the features of candidates. A family has the features of one subject.

To add a family, write a function in the module of its subject, and decorate it with
:func:`tweetrerank.rerankers.features.family.family`. The function's name is the
family's name, and the decorator lists its features. The function gets a
:class:`tweetrerank.rerankers.features.candidates.CandidateList`. It returns one column
of numbers for each feature, and its docstring explains them. Add a new module to
``_MODULES`` below. A model reads the family if its setting ``families`` names it.

The tests of the registry in ``tests/rerankers/test_features.py`` cover a new family
without new code. Also add it to ``tests/helpers/naive_features.py``, in plain loops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tweetrerank.rerankers.devices import in_processes, processes
from tweetrerank.rerankers.features import (
    feedback,
    judged,
    matches,
    meaning,
    quality,
    signals,
    temporal,
)
from tweetrerank.rerankers.features.candidates import CandidateList
from tweetrerank.rerankers.features.family import (
    families,
    find,
    names_of,
    signals_of,
)
from tweetrerank.rerankers.features.text_tables import PostTable, WordTable
from tweetrerank.rerankers.pairs import FREQUENCIES, lists_of

if TYPE_CHECKING:
    from tweetrerank.rerankers.features.recent import RecentPosts
    from tweetrerank.rerankers.pairs import Pairs
    from tweetrerank.rerankers.text.vocabulary import Idf

__all__ = [
    "DECIMALS",
    "CandidateLists",
    "FeatureTable",
    "families",
    "find",
    "names_of",
    "of_lists",
    "signals_of",
    "table",
]

Floats = npt.NDArray[np.float32]
Rows = npt.NDArray[np.int64]

_MODULES = (feedback, judged, matches, meaning, quality, signals, temporal)
"""Modules that define families. Importing a module registers its families."""

# Least number of pairs for each process. A process takes half a second for them.
MANY = 10_000

DECIMALS = 4
"""Number of decimals to which features are rounded.

The order of additions in a sum changes its last digits. After rounding, it does not
change the scores of trees.
"""


class FeatureTable(NamedTuple):
    """Features of P pairs."""

    names: tuple[str, ...]  # [K] ``family.feature``
    values: Floats  # [P, K]


class CandidateLists:
    """The lists of candidates of all queries, and their features.

    The features of a candidate depend on the other candidates of its list.

    Args:
        pairs: P pairs in any order. All pairs of a query are its list of candidates.
        chosen: names of families, in the order of the columns.
        idf: source of IDF.
        recent: cache of the posts that earlier calls read. None: there is no cache, and
            all posts are read at once.

    Attributes:
        names: names of the K features.
        rows: for each list, the rows of its pairs, ordered by post.

    Raises:
        RerankerError: the name of a family is unknown.
    """

    def __init__(
        self,
        pairs: Pairs,
        chosen: Sequence[str],
        idf: Idf,
        recent: RecentPosts | None = None,
    ) -> None:
        self.names = names_of(chosen)
        self.rows: list[Rows] = []
        self._pairs = pairs
        self._families = [find(name) for name in chosen]
        if chosen:
            # Posts are in a fixed order, because the rounding of sums depends on it.
            self.rows = lists_of(pairs.query_index, pairs.post_index)
        if self.rows:
            self._open_tables(idf, recent)

    def _open_tables(
        self,
        idf: Idf,
        recent: RecentPosts | None,
    ) -> None:
        pairs = self._pairs
        self._read: Callable[[Rows], PostTable]
        if recent:
            self._words = recent.words(idf)
            self._read = recent.reader(pairs, self._words)
        else:
            self._words = WordTable(idf)
            # All posts are read together, because queries may share posts.
            posts = PostTable.read(pairs.texts, pairs.urls, self._words)
            self._read = posts.take

    def features(self, rows: Rows) -> Floats:
        """Return the rounded features of one list [N, K].

        ``rows`` is an item of :attr:`rows`.
        """
        candidates = self.candidates(rows)
        shape = (len(self.names), len(rows))
        values = np.empty(shape, dtype=np.float32)
        number = 0
        for family in self._families:
            for column in family.columns(candidates):
                values[number] = column
                number += 1
        return values.round(DECIMALS).T

    def candidates(self, rows: Rows) -> CandidateList:
        """Return one list. ``rows`` is an item of :attr:`rows`."""
        pairs = self._pairs
        query = int(pairs.query_index[rows[0]])
        posts = pairs.post_index[rows]
        numbers = posts.tolist()
        # Features are in single precision. The pairs keep double precision, in which a
        # mixture reads the first stage's scores.
        list_signals = {
            name: values[rows].astype(np.float32)
            for name, values in pairs.signals.items()
        }
        doc_ids: list[str] = []
        if pairs.doc_ids:
            doc_ids = [pairs.doc_ids[number] for number in numbers]
        return CandidateList(
            query=pairs.queries[query],
            posts=self._read(posts),
            doc_ids=doc_ids,
            signals=list_signals,
            words=self._words,
            resources=pairs.resources[query] if pairs.resources else {},
            texts=[pairs.texts[number] for number in numbers],
        )


def of_lists(
    pairs: Pairs,
    chosen: Sequence[str],
    idf: Idf,
    recent: RecentPosts | None = None,
    function: Callable[[Floats], Floats] = np.asarray,
) -> Iterator[tuple[Rows, Floats]]:
    """Yield (rows [N] of its pairs, result of ``function``) for each query.

    ``function`` gets the features [N, K] of the query's list; by default it returns
    them. Large inputs are shared among processes, so queries come in any order. The
    other arguments and errors are those of :class:`CandidateLists`.
    """

    def compute(part: Rows) -> Iterator[tuple[Rows, Any]]:
        part_pairs = pairs.alone(part)
        results = _compute(part_pairs, chosen, idf, recent, function)
        for rows, result in results:
            yield part[rows], result

    count = 1 if recent else min(processes(), len(pairs) // MANY)
    if count > 1:
        shares = _shares(pairs, count)
        if len(shares) > 1:
            return in_processes(compute, shares)
    return _compute(
        pairs,
        chosen,
        idf,
        recent,
        function,
    )


def _compute(
    pairs: Pairs,
    chosen: Sequence[str],
    idf: Idf,
    recent: RecentPosts | None,
    function: Callable[[Floats], Floats],
) -> Iterator[tuple[Rows, Floats]]:
    lists = CandidateLists(
        pairs,
        chosen,
        idf,
        recent,
    )
    for rows in lists.rows:
        yield rows, function(lists.features(rows))


def _shares(pairs: Pairs, count: int) -> list[Rows]:
    """Return the rows of the pairs of each process.

    All pairs of a query are in one share. There are at most as many shares as queries.
    """
    lists = lists_of(pairs.query_index)
    shares = []
    for number in range(min(count, len(lists))):
        shares.append(np.concatenate(lists[number::count]))
    return shares


def table(
    pairs: Pairs,
    chosen: Sequence[str],
    idf: Idf,
) -> FeatureTable:
    """Return the features of all pairs.

    ``idf`` is the source of IDF for queries whose resources have no ``frequencies``.
    The other arguments and errors are those of :class:`CandidateLists`.
    """
    names = names_of(chosen)
    shape = (len(pairs), len(names))
    values = np.zeros(shape, dtype=np.float32)
    idf_of_queries = [idf] * len(pairs.queries)
    if pairs.resources:
        idf_of_queries = [
            resources.get(FREQUENCIES, idf) for resources in pairs.resources
        ]
    for source in dict.fromkeys(idf_of_queries):
        has_source = np.array([query_idf is source for query_idf in idf_of_queries])
        rows = np.flatnonzero(has_source[pairs.query_index])
        part = pairs if len(rows) == len(pairs) else pairs.alone(rows)
        for list_rows, features in of_lists(part, chosen, source):
            values[rows[list_rows]] = features
    return FeatureTable(names, values)
