"""One topic's candidates, as the families of ``rerankers/features`` see them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from rerankers import text
from rerankers.characters import Characters
from rerankers.term_vectors import TermVectors
from rerankers.vocabulary import Idf
from rerankers.word_table import Tokens, WordTable


class Memo(dict[str, tuple[str, ...]]):
    """Text -> its words, each distinct text read once, whatever number of topics has it.

    ``tables`` has what is known of these words, by the source of their IDF.
    """

    def __init__(self, read: Callable[[str], Sequence[str]] = text.words) -> None:
        super().__init__()
        self.read = read
        self.tables: dict[Idf, WordTable] = {}

    def __missing__(self, key: str) -> tuple[str, ...]:
        self[key] = found = tuple(self.read(key))
        return found


@dataclass(frozen=True)
class CandidateList:
    """A query and its N candidates.

    Attributes:
        query: text of the query.
        texts: [N] texts of the posts.
        urls: [N] expanded URL of each post, or "".
        doc_ids: [N] identifiers of the posts; empty where they are not known.
        signals: name -> [N] what is known of each candidate besides its text; see
            :class:`rerankers.base.Pairs`. A signal that is not there counts as 0.
        idf: how rare a word is.
        memo: words of texts that have been read; lists that have posts in common share it.
    """

    query: str
    texts: Sequence[str]
    urls: Sequence[str]
    doc_ids: Sequence[str]
    signals: Mapping[str, npt.NDArray[np.float32]]
    idf: Idf
    memo: Memo

    def __len__(self) -> int:
        return len(self.texts)

    def signal(self, name: str) -> npt.NDArray[np.float32]:
        """The signal of this name [N], zeros if it is not there."""
        found = self.signals.get(name)
        return np.zeros(len(self), dtype=np.float32) if found is None else found

    def minmax(self, name: str) -> npt.NDArray[np.float64]:
        """[N] the signal of this name, s, as (s − min) / (max − min); 0 if all are equal."""
        values = self.signal(name).astype(np.float64)
        lowest, highest = values.min(initial=np.inf), values.max(initial=-np.inf)
        if not highest > lowest:
            return np.zeros(len(values))
        scaled: npt.NDArray[np.float64] = (values - lowest) / (highest - lowest)
        return scaled

    @cached_property
    def query_words(self) -> tuple[str, ...]:
        """The Lq distinct words of the query, in its order."""
        return tuple(dict.fromkeys(self.memo[self.query]))

    @cached_property
    def query_weights(self) -> npt.NDArray[np.float32]:
        """[Lq] IDF of each of them."""
        return self.idf.weights(self.query_words)

    @cached_property
    def post_words(self) -> list[tuple[str, ...]]:
        """[N] the words of each post."""
        return [self.memo[post] for post in self.texts]

    @cached_property
    def tokens(self) -> Tokens:
        """What is known of each word of the posts and the query, as arrays."""
        if self.idf not in self.memo.tables:
            self.memo.tables[self.idf] = WordTable(self.idf)
        return Tokens.of(self.memo.tables[self.idf], self.memo[self.query], self.post_words)

    @cached_property
    def characters(self) -> Characters:
        """The posts' characters, as far as texts are read."""
        return Characters.of([post[: text.MAX_CHARACTERS] for post in self.texts])

    @cached_property
    def term_vectors(self) -> TermVectors:
        """The posts as TF-IDF vectors of stems, compared with each other."""
        return TermVectors.of(self.tokens)

    @cached_property
    def common(self) -> npt.NDArray[np.bool_]:
        """[N, Lq] whether a post has a word of the query."""
        return self.found_in([frozenset(words) for words in self.post_words])

    def found_in(self, places: Sequence[str] | Sequence[frozenset[str]]) -> npt.NDArray[np.bool_]:
        """[N, Lq] whether a word of the query is in each of N strings or sets."""
        words = self.query_words
        found = [[word in place for word in words] for place in places]
        return np.array(found, dtype=np.bool_).reshape(len(places), len(words))

    def shares(self, found: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
        """[N] fraction of the query's words that are found [N, Lq]; 0 for a query without words."""
        shares: npt.NDArray[np.float64] = found.sum(axis=1) / max(1, found.shape[1])
        return shares
