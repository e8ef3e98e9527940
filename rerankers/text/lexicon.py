"""Represent texts by the numbers of their words in a list of distinct words."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from tweetrerank.rerankers.text.ragged import Ragged
from tweetrerank.rerankers.text.words import (
    END,
    character_trigrams,
    shortened,
    tokens_of,
    treebank_words,
)


@dataclass(frozen=True)
class Lexicon:
    """N texts of T words in all, as rows in a list of their V distinct words."""

    words: list[str]  # [V]; a few may be equal because they were shortened later
    texts: Ragged  # N lists of rows in ``words``, T rows in all

    @classmethod
    def from_texts(
        cls,
        texts: Sequence[str],
        tokens: str = "words",
    ) -> Self:
        """Split texts into words by the rule ``tokens``.

        The rules are the values of
        :attr:`tweetrerank.rerankers.text.words.Reading.tokens`.
        """
        if tokens == "words":
            return cls._numbered(tokens_of(texts), shorten=True)
        return cls._numbered(_ended_treebank_words(texts), shorten=False)

    @classmethod
    def _numbered(
        cls,
        tokens: Iterable[str],
        shorten: bool,
    ) -> Self:
        """Number the distinct tokens of some texts, in order of first appearance.

        Each text must end with END.
        """
        row_of = {END: 0}
        rows = [row_of.setdefault(token, len(row_of)) for token in tokens]
        lists = Ragged.split(
            np.array(rows, dtype=np.int64),
            0,
        )
        words = list(row_of)[1:]
        if shorten:
            words = [shortened(word) for word in words]
        return cls(words, Ragged(lists.values - 1, lists.starts))

    def trigrams(self) -> Ragged:
        """Return the character trigrams of each of the T words, as T lists."""
        return character_trigrams(self.words).take(self.texts.values)


def _ended_treebank_words(texts: Sequence[str]) -> Iterator[str]:
    for text in texts:
        yield from treebank_words(text)
        yield END
