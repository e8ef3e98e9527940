"""A topic's candidates, and the families of features that read them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

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

FEWEST_COMPARED = 33
"""Candidates from which on their order is read, and they are compared with one another. Clients
send lists in batches of up to 32, whose scores must compare across batches: the first of a batch
need not be better than the last of the one before."""

USUAL_LENGTH = 20.0  # Words of a post where a list is too short to tell
CERTAIN = 1.0 - 1e-6  # IDF from which on a source of IDF does not know a word
LEAST_KNOWN = (
    0.5  # Share of the words of query and posts from which what is known of them counts
)

RAREST_KNOWN = 0.57
"""Mean IDF of all words from which on a source of IDF is one of another language. By English
frequencies, English texts of other kinds have .25 to .45, 12 of 446 lists of tweets .55 and more,
other languages in Latin script .58 and more: many of their words occur in English texts, rarely."""


@dataclass(frozen=True)
class CandidateList:
    """A query and its N candidates.

    No sum over words or candidates is a matrix product: the rounding of these may depend on the
    number of rows, and trees see it.
    """

    query: str
    posts: PostTable
    doc_ids: Sequence[str]  # [N]; empty if unknown
    signals: Mapping[str, npt.NDArray[np.float32]]
    """Name -> [N] numbers besides the texts; see :class:`tweetrerank.rerankers.pairs.Pairs`."""
    words: WordTable  # The words of posts and query; shared by the topics
    resources: Resources = field(default_factory=dict)  # Knowledge of the collection
    texts: Sequence[str] = ()  # [N] whole texts of the posts

    def __len__(self) -> int:
        return len(self.posts)

    def signal(self, name: str) -> npt.NDArray[np.float32]:
        """A signal [N]; zeros if it is missing."""
        values = self.known(name)
        return np.zeros(len(self), dtype=np.float32) if values is None else values

    def known(self, name: str) -> npt.NDArray[np.float32] | None:
        """A signal [N]; None if it is missing or unknown, or the order of a short list."""
        values = self.signals.get(name)
        if (
            values is None
            or (name == ORDER and self.is_short)
            or np.isnan(values).all()
        ):
            return None
        return values

    @cached_property
    def evidence(self) -> Floats:
        """[N] what a first stage says of each candidate, in [0, 1], 1 for its best.

        Min–max scores; without scores 1 − ln(place) / ln(N) of each place in the given order;
        without an order min–max BM25 of the texts.
        """
        if (scores := self.known(FIRST_STAGE)) is not None:
            return minmax(scores)
        if (order := self.known(ORDER)) is not None:
            return minmax(-np.log(order))
        return minmax(self.bm25)

    @cached_property
    def bm25(self) -> Floats:
        """[N] BM25 of the texts by stems, a share of the highest possible score; in [0, 1).

        k₁ = 0.9 and b = 0.4, as in Anserini.
        """
        return self._bm25(self.stem_frequencies[1])

    @cached_property
    def content_bm25(self) -> Floats:
        """[N] the same of the query's content words, each as often as the query has it; of all
        words where none is a content word."""
        query, stems = self.tokens.query, np.unique(self.query_columns.stem)
        content = (
            ~query.is_stop_word if not query.is_stop_word.all() else query.is_stop_word
        )
        places = np.searchsorted(stems, query.stem[content])
        return self._bm25(
            self.stem_frequencies[1] * np.bincount(places, minlength=len(stems))
        )

    def _bm25(self, weights: Floats) -> Floats:
        """[N] BM25 with weights [S] of the query's stems."""
        frequencies, _ = self.stem_frequencies
        norm = 0.9 * (0.6 + 0.4 * self.posts.column("words").lengths / self.mean_length)
        saturated = frequencies / (frequencies + norm[:, None])
        return (saturated * weights).sum(axis=1) / max(weights.sum(), 1e-9)

    @cached_property
    def mean_length(self) -> float:
        """Words of a candidate, in the mean; in short lists a usual number."""
        if self.is_short:
            return USUAL_LENGTH
        return max(float(self.posts.column("words").lengths.mean()), 1.0)

    @cached_property
    def is_short(self) -> bool:
        """Whether no feature of the texts compares the candidates with one another.

        A fusion's own searches found all of its candidates, so it compares few of them, too.
        """
        of_rankers = [name for name in self.signals if not name.startswith(NUMBER)]
        is_given = {FIRST_STAGE, ORDER, PRIOR}.issuperset(of_rankers)
        return is_given and len(self) < FEWEST_COMPARED

    @property
    def compared(self) -> float:
        """Factor of features that compare the candidates: 1, NaN in a short list."""
        return np.nan if self.is_short else 1.0

    @cached_property
    def stem_frequencies(self) -> tuple[Floats, Floats]:
        """[N, S] occurrences of the query's S distinct stems in each post, and their IDF [S].

        A stem has the IDF of the query's commonest word with it.
        """
        query, tokens = self.query_columns, self.tokens
        stems, places = np.unique(query.stem, return_inverse=True)
        idf, counts = (
            np.full(len(stems), np.inf),
            np.zeros((len(self), len(stems)), order="F"),
        )
        np.minimum.at(idf, places, query.idf)
        for column, stem in zip(counts.T, stems, strict=True):
            column += np.bincount(
                tokens.posts.owners[tokens.words.stem == stem], None, len(self)
            )
        return counts, idf

    @cached_property
    def query_tokens(self) -> list[str]:
        """All words of the query, in its order."""
        return words(self.query)

    @cached_property
    def spaced_query(self) -> Ragged:
        """The code points of the query's words, with a space around each."""
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
        posts, query = self.posts.column("words"), self.words.rows(self.query_tokens)
        return Tokens(posts, self.columns.take(posts.values), self.columns.take(query))

    @cached_property
    def knows_frequencies(self) -> bool:
        """Whether the source of IDF knows at least half of all words, and they are not all rare."""
        rows, places = self.distinct_words
        if not len(places):
            return True
        idf = self.words.columns().idf[rows][places]
        return bool((idf < CERTAIN).mean() >= LEAST_KNOWN and idf.mean() < RAREST_KNOWN)

    @cached_property
    def columns(self) -> WordColumns:
        """The properties of all words of the table.

        Where the source of IDF knows too few words, IDF is that among the candidates.
        """
        is_kept = self.knows_frequencies or self.is_short  # The first reads the words.
        columns = self.words.columns()
        if is_kept:
            return columns
        posts, idf = (
            self.posts.column("words"),
            np.ones(len(columns.idf), dtype=np.float32),
        )
        keys = np.unique(posts.owners * len(idf) + posts.values)
        words, holders = np.unique(keys % len(idf), return_counts=True)
        idf[words] = np.log1p(len(self) / holders) / np.log1p(len(self))
        return columns._replace(idf=idf)

    @cached_property
    def distinct_words(self) -> tuple[Rows, Rows]:
        """Rows [V] of the words of query and posts; place [Lq + T] of each word there."""
        query = self.words.rows(self.query_tokens)
        return numbered(np.concatenate([query, self.posts.column("words").values]))

    def contains(self, column: Ragged) -> Bools:
        """[N, Lq] whether each of N lists of words, given by rows, has each word of the query."""
        rows = self.words.rows(self.query_words)
        is_there = np.zeros((len(column), len(rows)), dtype=np.bool_)
        for place, row in enumerate(rows.tolist()):
            is_there[column.owners[column.values == row], place] = True
        return is_there

    def shares(self, is_there: Bools) -> Floats:
        """[N] share of the query's words that are there [N, Lq]; 0 for a query without words."""
        return is_there.sum(axis=1) / max(1, is_there.shape[1])


class Tokens(NamedTuple):
    """The T words of N posts, and the Lq words of their query."""

    posts: Ragged  # N lists of rows in the table of words
    words: WordColumns  # Each [T]
    query: WordColumns  # Each [Lq], in the query's order

    def mean(self, values: npt.NDArray[np.generic]) -> Floats:
        """[N] mean of ``values`` [T] over each post's words; 0 for a post without words."""
        return self.total(values) / np.maximum(self.posts.lengths, 1)

    def total(self, values: npt.NDArray[np.generic]) -> Floats:
        """[N] sum of ``values`` [T] over each post's words."""
        return sums(self.posts.owners, values, len(self.posts))


def sums(owners: Rows, values: npt.NDArray[np.generic], size: int) -> Floats:
    """[N = ``size``] sum of the ``values`` [T] of each owner [T]."""
    return np.bincount(owners, weights=values, minlength=size).astype(np.float64)


def numbered(values: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], Rows]:
    """Distinct values [V] of T numbers from 0 on, in order of appearance; number [T] of each.

    With these numbers, rounding does not depend on the rows of words in their table. No sorting.
    """
    places = np.arange(len(values))
    first = np.empty(int(values.max(initial=-1)) + 1, dtype=np.int64)
    first[values[::-1]] = places[::-1]  # Of equal indices the last assignment holds.
    place = first[values]
    is_first = place == places
    return values[is_first], (np.cumsum(is_first) - 1)[place]


def minmax(values: npt.NDArray[np.floating]) -> Floats:
    """[N] (v − min) / (max − min) of each value v, in [0, 1]; 0 if all are equal."""
    values = values.astype(np.float64)
    lowest, highest = values.min(initial=np.inf), values.max(initial=-np.inf)
    if not highest > lowest:
        return np.zeros(len(values))
    return (values - lowest) / (highest - lowest)


def z_score(values: npt.NDArray[np.floating]) -> Floats:
    """[N] (v − mean) / standard deviation (with the divisor N) of each value v; 0 if all are equal.

    Min–max and standard scores are those of Montague & Aslam (2001), "Relevance score normalization
    for metasearch".
    """
    deviations = values - values.mean()
    return deviations / (np.sqrt(np.mean(deviations * deviations)) or np.inf)


def higher(values: npt.NDArray[np.floating]) -> Rows:
    """[N] number of values higher than each."""
    return len(values) - np.searchsorted(np.sort(values), values, side="right")


def normalised(scores: Floats) -> tuple[Floats, Floats, Floats]:
    """Three of [N], for N ≥ 1 scores: :func:`minmax`, :func:`z_score` and ln(1 + higher ones)."""
    return minmax(scores), z_score(scores), np.log1p(higher(scores))


Columns = Sequence[npt.NDArray[Any]]  # K features of N candidates, each [N]
Compute = Callable[[CandidateList], Columns]


class Family(NamedTuple):
    """Features of one subject, and the signals that it reads (:class:`tweetrerank.rerankers.pairs.Pairs`)."""

    names: Sequence[str]
    signals: Sequence[str]
    columns: Compute


FAMILIES: dict[str, Family] = {}  # Name -> family without a parameter

PARAMETRIC: dict[str, tuple[str, Callable[[str], Family]]] = {}
"""Name -> name of the parameter, and its family; RerankerError for a wrong one."""


def family(names: str, *signals: str) -> Callable[[Compute], Compute]:
    """Decorator of a family: ``names`` of its features, which the docstring explains."""

    def register(columns: Compute) -> Compute:
        FAMILIES[columns.__name__] = Family(names.split(), signals, columns)
        return columns

    return register
