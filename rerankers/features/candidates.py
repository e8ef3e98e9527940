"""A query's list of candidates, with the properties that several families read."""

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
"""Least number of candidates in a list that features compare and whose order they read.

A shorter list may be one batch of a longer one: clients send lists in batches of up to
32. Scores must be comparable across batches, because the first post of a batch need not
be better than the last one of the previous batch.
"""

# Number of words of a post, used in lists that are too short to estimate it
USUAL_LENGTH = 20.0

# Least IDF of a word that the source of IDF does not have. Rounding makes it less than
# 1.
CERTAIN = 1.0 - 1e-6

LEAST_KNOWN = 0.5
"""Share of a list's words that a source of words must know. If it knows fewer, it is
not used for the list."""

RAREST_KNOWN = 0.57
"""Mean IDF of a list's words from which the source of IDF is taken to be one of another
language.

With English frequencies, the mean is .25 to .45 for various kinds of English texts.
Only 12 of 446 lists of tweets have .55 or more. Lists in other languages of Latin
script have .58 or more, because many of their words occur in English texts, but rarely.
"""


class StemCounts(NamedTuple):
    """How often each of the query's S distinct stems occurs in each of N posts."""

    stems: npt.NDArray[np.int32]  # [S] numbers of the stems, ascending
    counts: Floats  # [N, S]
    idf: Floats  # [S] IDF of the query's most common word with this stem


@dataclass(frozen=True)
class CandidateList:
    """A query and its N candidates.

    No sum over words or candidates is computed as a matrix product, because the
    rounding of a matrix product may depend on the number of rows. A score of trees can
    jump because of such a difference.
    """

    query: str
    posts: PostTable
    doc_ids: Sequence[str]  # [N]; empty if unknown
    signals: Mapping[str, Signal]
    """Name -> numbers of the candidates [N], as in
    :class:`tweetrerank.rerankers.pairs.Pairs`."""
    words: WordTable  # Words of the posts and the query; all topics share the table
    resources: Resources = field(default_factory=dict)  # What the collection offers
    texts: Sequence[str] = ()  # [N] complete texts of the posts

    def __len__(self) -> int:
        return len(self.posts)

    def signal(self, name: str) -> Signal:
        """Return a signal [N], or zeros if it is unknown for all candidates.

        Unlike in :attr:`signals`, the order of a short list counts as unknown.
        """
        values = self.known_signal(name)
        if values is None:
            return np.zeros(len(self), dtype=np.float32)
        return values

    def known_signal(self, name: str) -> Signal | None:
        """Return a signal [N], or None if it is missing or NaN everywhere.

        Also returns None for the order of a short list, which means nothing.
        """
        if name == ORDER and self.is_short:
            return None
        values = self.signals.get(name)
        if values is None or np.isnan(values).all():
            return None
        return values

    @cached_property
    def evidence(self) -> Floats:
        """How good each candidate [N] is by the first stage, from 0 to 1 for the best.

        These are the min–max scores. If there are no scores but an order, they are the
        min–max values of −ln(place). If there is neither, they are the min–max BM25
        scores of the texts.
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
        """BM25 of the texts over stems [N], as a share of the highest possible score.

        The values are in [0, 1). The parameters are k₁ = 0.9 and b = 0.4, as in
        Anserini.
        """
        return self._bm25(self.stem_counts.idf)

    @cached_property
    def content_bm25(self) -> Floats:
        """BM25 over the query's content words [N]; repeated words count repeatedly.

        Content words are those that are not stop words. If the query has none, all its
        words count.
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
        """Return BM25 [N] with these weights [S] of the query's stems."""
        counts = self.stem_counts.counts
        lengths = self.posts.column("words").lengths
        norm = 0.9 * (0.6 + 0.4 * lengths / self.mean_length)
        saturated = counts / (counts + norm[:, None])
        scores = (saturated * weights).sum(axis=1)
        return scores / max(weights.sum(), 1e-9)

    @cached_property
    def mean_length(self) -> float:
        """Mean number of words of a candidate, at least 1.

        In a short list, it is :data:`USUAL_LENGTH`.
        """
        if self.is_short:
            return USUAL_LENGTH
        lengths = self.posts.column("words").lengths
        return max(float(lengths.mean()), 1.0)

    @cached_property
    def is_short(self) -> bool:
        """Whether the list is too short to compare its candidates with one another.

        A list with the scores of several searches is never short, because a fusion
        found its candidates itself, so they are not a batch of a longer list.
        """
        rankers = {name for name in self.signals if not name.startswith(NUMBER)}
        is_given = rankers <= {FIRST_STAGE, ORDER, PRIOR}
        return is_given and len(self) < FEWEST_COMPARED

    @property
    def comparison_factor(self) -> float:
        """1, or NaN in a short list.

        Features that compare the candidates are multiplied by it, so that they are
        unknown in a short list.
        """
        return np.nan if self.is_short else 1.0

    @cached_property
    def stem_counts(self) -> StemCounts:
        """How often the query's stems occur in the posts."""
        query = self.query_columns
        stems, places = np.unique(query.stem, return_inverse=True)
        idf = np.full(len(stems), np.inf)
        np.minimum.at(idf, places, query.idf)
        posts, post_words, _ = self.tokens
        # The array is in column order, because the loop fills columns.
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
        """All words of the query, in the order of the query."""
        return words(self.query)

    @cached_property
    def spaced_query(self) -> Ragged:
        """Code points of the query's words, with a space around each word."""
        return spaced([self.query_tokens])

    @cached_property
    def query_words(self) -> tuple[str, ...]:
        """The Lq distinct words of the query, in the order of first appearance."""
        return tuple(dict.fromkeys(self.query_tokens))

    @cached_property
    def query_columns(self) -> WordColumns:
        """Properties of the query's distinct words: each [Lq]."""
        return self.columns.take(self.words.rows(self.query_words))

    @cached_property
    def tokens(self) -> "Tokens":
        """All words of the posts and of the query, as arrays."""
        posts = self.posts.column("words")
        query = self.words.rows(self.query_tokens)
        return Tokens(
            posts,
            words=self.columns.take(posts.values),
            query=self.columns.take(query),
        )

    @cached_property
    def knows_frequencies(self) -> bool:
        """Whether the source of IDF fits the language of the list.

        It must know enough of the distinct words, and these must not all be rare.
        """
        rows, places = self.distinct_words
        if not len(places):
            return True
        idf = self.words.columns().idf[rows][places]
        share_known = (idf < CERTAIN).mean()
        return bool(share_known >= LEAST_KNOWN and idf.mean() < RAREST_KNOWN)

    @cached_property
    def columns(self) -> WordColumns:
        """Properties of all words of the table.

        If the source of IDF does not fit the list, the IDF is computed from the
        candidates themselves, unless the list is short.
        """
        # This is read first, because it adds the list's words to the table.
        knows_frequencies = self.knows_frequencies
        columns = self.words.columns()
        if knows_frequencies or self.is_short:
            return columns
        return columns._replace(idf=self._idf_among_candidates(len(columns.idf)))

    def _idf_among_candidates(self, size: int) -> Signal:
        """Return the IDF of all ``size`` words of the table among the candidates.

        A word that no candidate has gets 1.
        """
        idf = np.ones(size, dtype=np.float32)
        posts = self.posts.column("words")
        # Each distinct word of each post has one key.
        keys = np.unique(posts.owners * size + posts.values)
        words, holders = np.unique(keys % size, return_counts=True)
        rarity = np.log1p(len(self) / holders)
        idf[words] = rarity / np.log1p(len(self))
        return idf

    @cached_property
    def distinct_words(self) -> tuple[Rows, Rows]:
        """(rows [V], places [number of words]) of the words of the query and the posts.

        ``rows`` are the rows of the V distinct words in the table. ``places`` has the
        index in ``rows`` of each word: first the words of the query, then those of the
        posts.
        """
        query = self.words.rows(self.query_tokens)
        posts = self.posts.column("words").values
        return numbered(np.concatenate([query, posts]))

    def contains(self, column: Ragged) -> Bools:
        """Return whether each of N lists contains each word of the query [N, Lq].

        The values of ``column`` are rows of words in the table.
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
        """Return the share [N] of the query's words whose flag [N, Lq] is true.

        The share is 0 for a query without words.
        """
        count = max(1, is_there.shape[1])
        return is_there.sum(axis=1) / count


class Tokens(NamedTuple):
    """The T words of N posts, and the words of their query, with repetitions."""

    posts: Ragged  # N lists of rows in the table of words
    words: WordColumns  # Properties of the posts' words, each [T]
    query: WordColumns  # Properties of the query's words, in the query's order

    def mean(self, values: Array) -> Floats:
        """Return the mean [N] of ``values`` [T] over the words of each post.

        The mean is 0 for a post without words.
        """
        return self.total(values) / np.maximum(self.posts.lengths, 1)

    def total(self, values: Array) -> Floats:
        """Return the sum [N] of ``values`` [T] over the words of each post."""
        return sums(self.posts.owners, values, len(self.posts))


def sums(
    owners: Rows,
    values: Array,
    size: int,
) -> Floats:
    """Return the sum of ``values`` [T] for each of ``size`` owners, which are numbers.

    ``owners`` [T] says to whom each value belongs.
    """
    return np.bincount(owners, weights=values, minlength=size).astype(np.float64)


def numbered(values: Array) -> tuple[Array, Rows]:
    """Number the distinct values of an array in the order of their first appearance.

    The values are T integers, none below 0. Returns (distinct values [V], number of
    each value [T]), the numbers counting from 0. Sums in the order of these numbers are
    rounded in the same way wherever the words are in their table. No sort is needed, so
    this is faster than ``np.unique``.
    """
    places = np.arange(len(values))
    highest = int(values.max(initial=-1))
    first = np.empty(highest + 1, dtype=np.int64)
    # If an index occurs repeatedly, the last assignment holds: here the first place.
    first[values[::-1]] = places[::-1]
    first_places = first[values]  # [T]
    is_first = first_places == places
    numbers = np.cumsum(is_first) - 1
    return values[is_first], numbers[first_places]
