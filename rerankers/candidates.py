"""One topic's candidates, as the families of ``rerankers/features`` see them."""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from operator import contains

import numpy as np
import numpy.typing as npt

from rerankers import text
from rerankers.characters import Characters
from rerankers.term_vectors import TermVectors
from rerankers.unit_vectors import UnitVectors
from rerankers.vocabulary import Idf
from rerankers.word_table import Tokens, WordTable


def words_of_each(texts: Sequence[str]) -> list[tuple[str, ...]]:
    """:func:`rerankers.text.words` of each text, by one call of the tokenizer."""
    found, begin, tokens = [], 0, text.tokens_of(texts)
    distinct = set(tokens)
    short = dict(zip(distinct, map(text.shortened, distinct), strict=True))
    tokens = list(map(short.__getitem__, tokens))
    for _ in texts:
        end = tokens.index(text.END, begin)
        found.append(tuple(tokens[begin:end]))
        begin = end + 1
    return found


class Memo(dict[str, tuple[str, ...]]):
    """Text -> its words, each distinct text read once, whatever number of topics has it.

    ``tables`` has what is known of these words, by the sources of their IDF and vectors.
    """

    def __init__(
        self, read: Callable[[Sequence[str]], Iterable[tuple[str, ...]]] = words_of_each
    ) -> None:
        super().__init__()
        self.read = read
        self.tables: dict[tuple[Idf, UnitVectors | None], WordTable] = {}

    def __missing__(self, key: str) -> tuple[str, ...]:
        return self.each([key])[0]

    def each(self, texts: Sequence[str]) -> list[tuple[str, ...]]:
        """The words of each text; those that are new are read together."""
        new = [each for each in dict.fromkeys(texts) if each not in self]
        self.update(zip(new, self.read(new), strict=True))
        return [self[each] for each in texts]


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
        texts: [N] texts of the posts.
        urls: [N] expanded URL of each post, or "".
        doc_ids: [N] identifiers of the posts; empty where they are not known.
        signals: name -> [N] what is known of each candidate besides its text; see
            :class:`rerankers.base.Pairs`.
        idf: how rare a word is.
        memo: words of texts that have been read; lists that have posts in common share it.
        vectors: of words; None where there are none.
    """

    query: str
    texts: Sequence[str]
    urls: Sequence[str]
    doc_ids: Sequence[str]
    signals: Mapping[str, npt.NDArray[np.float32]]
    idf: Idf
    memo: Memo
    vectors: UnitVectors | None = None

    def __len__(self) -> int:
        return len(self.texts)

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
        return tuple(dict.fromkeys(self.memo[self.query]))

    @cached_property
    def query_weights(self) -> npt.NDArray[np.float32]:
        """[Lq] IDF of each of them."""
        return self.idf.weights(self.query_words)

    @cached_property
    def post_words(self) -> list[tuple[str, ...]]:
        """[N] the words of each post."""
        return self.memo.each(self.texts)

    @cached_property
    def tokens(self) -> Tokens:
        """What is known of each word of the posts and the query, as arrays."""
        sources = (self.idf, self.vectors)
        if sources not in self.memo.tables:
            self.memo.tables[sources] = WordTable(*sources)
        return Tokens.of(self.memo.tables[sources], self.memo[self.query], self.post_words)

    @cached_property
    def characters(self) -> Characters:
        """The posts' characters, as far as texts are read."""
        return Characters.of([post[: text.MAX_CHARACTERS] for post in self.texts])

    @cached_property
    def hashtags(self) -> list[list[str]]:
        """[N] :func:`rerankers.text.hashtags` of each post."""
        return [text.hashtags(post) for post in self.texts]

    @cached_property
    def term_vectors(self) -> TermVectors:
        """The posts as TF-IDF vectors of stems, compared with each other."""
        return TermVectors.of(self.tokens)

    @cached_property
    def common(self) -> npt.NDArray[np.bool_]:
        """[N, Lq] whether a post has a word of the query."""
        tokens = self.tokens
        found = np.zeros((len(self), len(self.query_words)), dtype=np.bool_)
        for column, word in enumerate(dict.fromkeys(tokens.query_word.tolist())):
            found[tokens.post[tokens.word == word], column] = True
        return found

    def found_in(self, places: Sequence[Container[str]]) -> npt.NDArray[np.bool_]:
        """[N, Lq] whether a word of the query is in each of N strings or lists of words."""
        found = np.zeros((len(places), len(self.query_words)), dtype=np.bool_)
        for column, word in enumerate(self.query_words):
            found[:, column] = [*map(contains, places, repeat(word))]
        return found

    def shares(self, found: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
        """[N] fraction of the query's words that are found [N, Lq]; 0 for a query without words."""
        shares: npt.NDArray[np.float64] = found.sum(axis=1) / max(1, found.shape[1])
        return shares
