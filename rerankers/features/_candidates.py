"""One topic's candidates, as the families of ``rerankers/features`` see them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from rerankers.features._post_table import PostTable
from rerankers.features._term_vectors import TermVectors
from rerankers.features._word_table import Tokens, WordTable
from rerankers.text.ragged import Ragged
from rerankers.text.vectors import UnitVectors
from rerankers.text.words import words


def minmax(values: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
    """[N] each value v as (v − min) / (max − min), in [0, 1]; 0 if all are equal."""
    values = values.astype(np.float64)
    lowest, highest = values.min(initial=np.inf), values.max(initial=-np.inf)
    if not highest > lowest:
        return np.zeros(len(values))
    scaled: npt.NDArray[np.float64] = (values - lowest) / (highest - lowest)
    return scaled


def higher(values: npt.NDArray[np.floating]) -> npt.NDArray[np.int64]:
    """[N] number of the other values that are higher than each."""
    return len(values) - np.searchsorted(np.sort(values), values, side="right")


def among_best(scores: npt.NDArray[np.floating], count: int) -> npt.NDArray[np.bool_]:
    """[N] whether each of the scores is one of the ``count`` highest, or equal to the last."""
    found: npt.NDArray[np.bool_] = scores >= np.sort(scores)[-min(count, len(scores))]
    return found


@dataclass(frozen=True)
class CandidateList:
    """A query and its N candidates.

    Attributes:
        query: text of the query.
        posts: the candidates.
        doc_ids: [N] identifiers of the posts; empty where they are not known.
        signals: name -> [N] what is known of each candidate besides its text; see
            :class:`rerankers.base.Pairs`.
        words: of posts and queries; lists that have posts in common share it.
        vectors: of words; None where there are none.
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
        """The signal of this name [N], zeros if it is not there."""
        found = self.signals.get(name)
        return np.zeros(len(self), dtype=np.float32) if found is None else found

    def minmax(self, name: str) -> npt.NDArray[np.float64]:
        """[N] :func:`minmax` of the signal of this name."""
        return minmax(self.signal(name))

    @cached_property
    def query_words(self) -> tuple[str, ...]:
        """The Lq distinct words of the query, in its order."""
        return tuple(dict.fromkeys(words(self.query)))

    @cached_property
    def query_rows(self) -> npt.NDArray[np.int64]:
        """[Lq] their rows in the table of words."""
        return self._looked_up(self.query_words)

    @property
    def query_weights(self) -> npt.NDArray[np.float32]:
        """[Lq] IDF of each of them."""
        rows = self.query_rows  # Which may be new to the table.
        return self.words.idf[rows]

    @property
    def query_is_content(self) -> npt.NDArray[np.bool_]:
        """[Lq] whether each of them is no stop word."""
        rows = self.query_rows
        return ~self.words.is_stop_word[rows]

    @cached_property
    def tokens(self) -> Tokens:
        """What is known of each word of the posts and the query, as arrays."""
        posts, query = self.posts.column("words"), self._looked_up(words(self.query))
        return Tokens.of(self.words, query, posts)

    @cached_property
    def term_vectors(self) -> TermVectors:
        """The posts as TF-IDF vectors of stems, to be compared with each other."""
        return TermVectors.of(self.tokens)

    def holding(self, column: Ragged) -> npt.NDArray[np.bool_]:
        """[N, Lq] whether a word of the query is in each of N lists of words, as their rows."""
        found = np.zeros((len(column), len(self.query_rows)), dtype=np.bool_)
        for place, row in enumerate(self.query_rows.tolist()):
            found[column.owners[column.values == row], place] = True
        return found

    def shares(self, found: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
        """[N] fraction of the query's words that are found [N, Lq]; 0 for a query without words."""
        shares: npt.NDArray[np.float64] = found.sum(axis=1) / max(1, found.shape[1])
        return shares

    def _looked_up(self, tokens: Sequence[str]) -> npt.NDArray[np.int64]:
        """[L] rows of words, of which everything is known."""
        rows = self.words.rows(tokens)
        self.words.look_up()
        return rows
