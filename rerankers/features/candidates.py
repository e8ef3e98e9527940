"""Candidates of a query, with the properties that several families of features read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tweetrerank.rerankers.features.scaling import minmax
from tweetrerank.rerankers.features.text_tables import (
    Bools,
    Floats,
    PostTable,
    WordColumns,
    WordTable,
    spaced,
)
from tweetrerank.rerankers.pairs import FIRST_STAGE, NUMBER, ORDER, PRIOR, Resources
from tweetrerank.rerankers.text.ragged import Ragged, Rows
from tweetrerank.rerankers.text.words import words

Array = npt.NDArray[Any]
Signal = npt.NDArray[np.float32]

FEWEST_COMPARED = 33
"""Least number of candidates that are compared with one another, and whose order is
read.

Clients send lists in batches of up to 32. Scores must be comparable across batches: the
first post of a batch need not be better than the last one of the previous batch.
"""

USUAL_LENGTH = 20.0  # Words of a post, for lists too short to estimate it

CERTAIN = 1.0 - 1e-6  # Least IDF of a word that is missing in the source of IDF

LEAST_KNOWN = 0.5
"""Least share of known words in query and posts for a source of words to be used."""

RAREST_KNOWN = 0.57
"""Least mean IDF of all words where the source of IDF is one of another language.

By English frequencies, English texts of other kinds have .25 to .45. Only 12 of 446
lists of tweets have .55 and more. Other languages in Latin script have .58 and more:
many of their words occur in English texts, rarely.
"""


class StemCounts(NamedTuple):
    """Occurrences of the query's S distinct stems in N posts."""

    stems: npt.NDArray[np.int32]  # [S] ascending
    counts: Floats  # [N, S]
    idf: Floats  # [S] of the query's most common word with the stem


@dataclass(frozen=True)
class CandidateList:
    """A query and its N candidates.

    No sum over words or candidates is a matrix product. The rounding of a matrix
    product may depend on the number of rows, and trees react to it.
    """

    query: str
    posts: PostTable
    doc_ids: Sequence[str]  # [N]; empty if unknown
    signals: Mapping[str, Signal]
    """Name -> numbers of the candidates [N]; see
    :class:`tweetrerank.rerankers.pairs.Pairs`."""
    words: WordTable  # Words of posts and query; shared by the topics
    resources: Resources = field(default_factory=dict)  # Knowledge of the collection
    texts: Sequence[str] = ()  # [N] complete texts of the posts

    def __len__(self) -> int:
        return len(self.posts)

    def signal(self, name: str) -> Signal:
        """Return a signal [N]; zeros if it is missing."""
        values = self.known_signal(name)
        if values is None:
            return np.zeros(len(self), dtype=np.float32)
        return values

    def known_signal(self, name: str) -> Signal | None:
        """Return a signal [N], or None if it is missing or NaN everywhere.

        The order of a short list is None, too.
        """
        if name == ORDER and self.is_short:
            return None
        values = self.signals.get(name)
        if values is None or np.isnan(values).all():
            return None
        return values

    @cached_property
    def evidence(self) -> Floats:
        """Evidence of the first stage for each candidate [N], in [0, 1], 1 for the
        best.

        Min–max scores. Without scores, 1 − ln(place) / ln(N) of the place in the given
        order. Without an order, min–max BM25 of the texts.
        """
        scores = self.known_signal(FIRST_STAGE)
        if scores is not None:
            return minmax(scores)
        order = self.known_signal(ORDER)
        if order is not None:
            return minmax(-np.log(order))
        return minmax(self.bm25)

    @cached_property
    def bm25(self) -> Floats:
        """BM25 of the texts by stems, as a share of the highest score: [N] in [0, 1).

        k₁ = 0.9 and b = 0.4, as in Anserini.
        """
        return self._bm25(self.stem_counts.idf)

    @cached_property
    def content_bm25(self) -> Floats:
        """BM25 by the query's content words, each as often as the query has it: [N].

        All words count in a query without content words.
        """
        query = self.tokens.query
        is_content = ~query.is_stop_word
        if not is_content.any():
            is_content = query.is_stop_word
        stems = self.stem_counts.stems
        columns = np.searchsorted(stems, query.stem[is_content])
        repetitions = np.bincount(columns, minlength=len(stems))
        return self._bm25(self.stem_counts.idf * repetitions)

    def _bm25(self, weights: Floats) -> Floats:
        """BM25 with weights [S] of the query's stems: [N]."""
        counts = self.stem_counts.counts
        lengths = self.posts.column("words").lengths
        norm = 0.9 * (0.6 + 0.4 * lengths / self.mean_length)
        saturated = counts / (counts + norm[:, None])
        scores = (saturated * weights).sum(axis=1)
        return scores / max(weights.sum(), 1e-9)

    @cached_property
    def mean_length(self) -> float:
        """Mean number of words of a candidate; a usual number in a short list."""
        if self.is_short:
            return USUAL_LENGTH
        lengths = self.posts.column("words").lengths
        return max(float(lengths.mean()), 1.0)

    @cached_property
    def is_short(self) -> bool:
        """Whether the list is too short to compare its candidates with one another.

        A fusion's list is never short, because the fusion found all of its candidates.
        """
        rankers = {name for name in self.signals if not name.startswith(NUMBER)}
        is_given = rankers <= {FIRST_STAGE, ORDER, PRIOR}
        return is_given and len(self) < FEWEST_COMPARED

    @property
    def comparison_factor(self) -> float:
        """Factor of features that compare the candidates: 1, or NaN in a short list."""
        return np.nan if self.is_short else 1.0

    @cached_property
    def stem_counts(self) -> StemCounts:
        """Occurrences of the query's stems in the posts."""
        query = self.query_columns
        stems, places = np.unique(query.stem, return_inverse=True)
        idf = np.full(len(stems), np.inf)
        np.minimum.at(idf, places, query.idf)
        posts, post_words, _ = self.tokens
        # In column order: the loop fills columns.
        counts = np.zeros(
            (len(self), len(stems)),
            order="F",
        )
        for column, stem in zip(counts.T, stems, strict=True):
            owners = posts.owners[post_words.stem == stem]
            column += np.bincount(owners, None, len(self))
        return StemCounts(stems, counts, idf)

    @cached_property
    def query_tokens(self) -> list[str]:
        """All words of the query, in its order."""
        return words(self.query)

    @cached_property
    def spaced_query(self) -> Ragged:
        """Code points of the query's words, with a space around each word."""
        return spaced([self.query_tokens])

    @cached_property
    def query_words(self) -> tuple[str, ...]:
        """The Lq distinct words of the query, in its order."""
        return tuple(dict.fromkeys(self.query_tokens))

    @cached_property
    def query_columns(self) -> WordColumns:
        """Properties of the query's distinct words: each [Lq]."""
        return self.columns.take(self.words.rows(self.query_words))

    @cached_property
    def tokens(self) -> "Tokens":
        """All words of posts and query, as arrays."""
        posts = self.posts.column("words")
        query = self.words.rows(self.query_tokens)
        return Tokens(
            posts,
            words=self.columns.take(posts.values),
            query=self.columns.take(query),
        )

    @cached_property
    def knows_frequencies(self) -> bool:
        """Whether the source of IDF knows enough of the words, and not all are rare."""
        rows, places = self.distinct_words
        if not len(places):
            return True
        idf = self.words.columns().idf[rows][places]
        share_known = (idf < CERTAIN).mean()
        return bool(share_known >= LEAST_KNOWN and idf.mean() < RAREST_KNOWN)

    @cached_property
    def columns(self) -> WordColumns:
        """Properties of all words of the table.

        The IDF is that among the candidates if the source of IDF knows too few words.
        """
        # Adds the list's words to the table, so it comes first.
        knows_frequencies = self.knows_frequencies
        columns = self.words.columns()
        if knows_frequencies or self.is_short:
            return columns
        return columns._replace(idf=self._idf_among_candidates(len(columns.idf)))

    def _idf_among_candidates(self, size: int) -> Signal:
        """IDF [``size``] of the words of the table; 1 for words of no candidate."""
        idf = np.ones(size, dtype=np.float32)
        posts = self.posts.column("words")
        # One number for each word of each post; repeated words are dropped.
        keys = np.unique(posts.owners * size + posts.values)
        words, holders = np.unique(keys % size, return_counts=True)
        rarity = np.log1p(len(self) / holders)
        idf[words] = rarity / np.log1p(len(self))
        return idf

    @cached_property
    def distinct_words(self) -> tuple[Rows, Rows]:
        """Rows of the V words of query and posts [V], place of each word there [Lq +
        T].

        Words of the query come first.
        """
        query = self.words.rows(self.query_tokens)
        posts = self.posts.column("words").values
        return numbered(np.concatenate([query, posts]))

    def contains(self, column: Ragged) -> Bools:
        """Return whether each list has each word of the query: [N, Lq].

        ``column``: N lists of rows of words.
        """
        rows = self.words.rows(self.query_words)
        is_there = np.zeros(
            (len(column), len(rows)),
            dtype=np.bool_,
        )
        for place, row in enumerate(rows.tolist()):
            owners = column.owners[column.values == row]
            is_there[owners, place] = True
        return is_there

    def shares(self, is_there: Bools) -> Floats:
        """Return the share of the query's words with a flag of True [N, Lq]: [N].

        The share is 0 for a query without words.
        """
        count = max(1, is_there.shape[1])
        return is_there.sum(axis=1) / count


class Tokens(NamedTuple):
    """The T words of N posts, and the Lq words of their query."""

    posts: Ragged  # N lists of rows in the table of words
    words: WordColumns  # Each [T]
    query: WordColumns  # Each [Lq], in the query's order

    def mean(self, values: Array) -> Floats:
        """Return the mean of ``values`` [T] over each post's words: [N].

        The mean is 0 for a post without words.
        """
        return self.total(values) / np.maximum(self.posts.lengths, 1)

    def total(self, values: Array) -> Floats:
        """Return the sum of ``values`` [T] over each post's words: [N]."""
        return sums(self.posts.owners, values, len(self.posts))


def sums(
    owners: Rows,
    values: Array,
    size: int,
) -> Floats:
    """Return the sum of the ``values`` [T] of each owner [T]: [``size``]."""
    return np.bincount(owners, weights=values, minlength=size).astype(np.float64)


def numbered(values: Array) -> tuple[Array, Rows]:
    """Number T integers of at least 0 in the order of their first appearance.

    Returns the distinct values [V] and the number of each value [T]. With these
    numbers, rounding does not depend on the rows of words in their table. Nothing is
    sorted.
    """
    places = np.arange(len(values))
    highest = int(values.max(initial=-1))
    first = np.empty(highest + 1, dtype=np.int64)
    first[values[::-1]] = places[::-1]  # The last assignment to an index holds
    first_places = first[values]  # [T]
    is_first = first_places == places
    numbers = np.cumsum(is_first) - 1
    return values[is_first], numbers[first_places]
