"""A topic's candidates, as the families of ``rerankers/features`` read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from rerankers.features._post_table import PostTable
from rerankers.features._word_table import WordTable
from rerankers.text.ragged import Ragged
from rerankers.text.vectors import UnitVectors
from rerankers.text.words import words


@dataclass(frozen=True)
class CandidateList:
    """A query and its N candidates.

    Attributes:
        query: text of the query.
        posts: the candidates.
        doc_ids: [N] identifiers of the posts; empty if unknown.
        signals: name -> [N] numbers besides the texts; see :class:`rerankers.base.Pairs`.
        words: table of the words of posts and query, shared by the topics.
        vectors: word vectors; None if there are none.
    """

    query: str
    posts: PostTable
    doc_ids: Sequence[str]
    signals: Mapping[str, npt.NDArray[np.float32]]
    words: WordTable
    vectors: UnitVectors | None = None

    def __len__(self) -> int:
        return len(self.posts)

    def signal(self, name: str) -> npt.NDArray[np.float32]:
        """A signal [N]; zeros if it is missing."""
        found = self.signals.get(name)
        return np.zeros(len(self), dtype=np.float32) if found is None else found

    def minmax(self, name: str) -> npt.NDArray[np.float64]:
        """[N] :func:`minmax` of a signal."""
        return minmax(self.signal(name))

    @cached_property
    def query_words(self) -> tuple[str, ...]:
        """The Lq distinct words of the query, in its order."""
        return tuple(dict.fromkeys(words(self.query)))

    @cached_property
    def query_rows(self) -> npt.NDArray[np.int64]:
        """[Lq] rows of the distinct words in the table of words."""
        return self._rows(self.query_words)

    @property
    def query_idf(self) -> npt.NDArray[np.float32]:
        """[Lq] IDF of the distinct words."""
        rows = self.query_rows  # First, as it may extend the table.
        return self.words.idf[rows]

    @property
    def query_is_content(self) -> npt.NDArray[np.bool_]:
        """[Lq] whether each distinct word is no stop word."""
        rows = self.query_rows
        return ~self.words.is_stop_word[rows]

    @cached_property
    def tokens(self) -> Tokens:
        """All words of posts and query, as arrays."""
        posts = self.posts.column("words")  # First, as new words extend the table.
        query = self._rows(words(self.query))
        return Tokens.from_rows(self.words, query, posts)

    def contains(self, column: Ragged) -> npt.NDArray[np.bool_]:
        """[N, Lq] whether each of N lists of words, given by rows, has each word of the query."""
        found = np.zeros((len(column), len(self.query_rows)), dtype=np.bool_)
        for place, row in enumerate(self.query_rows.tolist()):
            found[column.owners[column.values == row], place] = True
        return found

    def shares(self, found: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
        """[N] share of the query's words that are found [N, Lq]; 0 for a query without words."""
        shares: npt.NDArray[np.float64] = found.sum(axis=1) / max(1, found.shape[1])
        return shares

    def _rows(self, tokens: Sequence[str]) -> npt.NDArray[np.int64]:
        """[L] rows of words in the table, which looks up the new ones."""
        rows = self.words.rows(tokens)
        self.words.look_up()
        return rows


@dataclass(frozen=True)
class Tokens:
    """The T words of N posts, and the Lq words of their query.

    Attributes:
        post: [T] each word's post, ascending.
        place: [T] its place in the post, from 0.
        starts: [N + 1] where each post begins.
        counts: [N] words of each post.
        stem, idf, vector, is_stop_word, is_personal: [T]; see
            :class:`rerankers.features._word_table.KnownWords`.
        query_stem, query_is_stop_word: [Lq] of the query's words, in its order.
    """

    post: npt.NDArray[np.int64]
    place: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]
    stem: npt.NDArray[np.int32]
    idf: npt.NDArray[np.float32]
    vector: npt.NDArray[np.int32]
    is_stop_word: npt.NDArray[np.bool_]
    is_personal: npt.NDArray[np.bool_]
    query_stem: npt.NDArray[np.int32]
    query_is_stop_word: npt.NDArray[np.bool_]

    @classmethod
    def from_rows(cls, table: WordTable, query: npt.NDArray[np.int64], posts: Ragged) -> Tokens:
        """The words of a query and of posts, given by their rows in a table."""
        rows = posts.values
        return cls(
            posts.owners,
            posts.positions,
            posts.starts,
            posts.lengths,
            table.stem[rows],
            table.idf[rows],
            table.vector[rows],
            table.is_stop_word[rows],
            table.is_personal[rows],
            table.stem[query],
            table.is_stop_word[query],
        )

    def mean(self, values: npt.NDArray[np.generic]) -> npt.NDArray[np.float64]:
        """[N] mean of ``values`` [T] over each post's words; 0 for a post without words."""
        return self.total(values) / np.maximum(self.counts, 1)

    def total(self, values: npt.NDArray[np.generic]) -> npt.NDArray[np.float64]:
        """[N] sum of ``values`` [T] over each post's words."""
        totals = np.bincount(self.post, weights=values, minlength=len(self.counts))
        return totals.astype(np.float64)


def minmax(values: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
    """[N] (v − min) / (max − min) of each value v, in [0, 1]; 0 if all are equal."""
    values = values.astype(np.float64)
    lowest, highest = values.min(initial=np.inf), values.max(initial=-np.inf)
    if not highest > lowest:
        return np.zeros(len(values))
    scaled: npt.NDArray[np.float64] = (values - lowest) / (highest - lowest)
    return scaled


def higher(values: npt.NDArray[np.floating]) -> npt.NDArray[np.int64]:
    """[N] number of values higher than each."""
    return len(values) - np.searchsorted(np.sort(values), values, side="right")
