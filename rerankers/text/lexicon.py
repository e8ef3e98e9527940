"""Texts as rows of their distinct words."""

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
    """Distinct words of N texts, which have T words in all, V of them distinct."""

    words: list[str]  # [V]; a few may be equal after shortening
    texts: Ragged  # N lists: the row in ``words`` of each of the T words

    @classmethod
    def from_texts(
        cls,
        texts: Sequence[str],
        tokens: str = "words",
    ) -> Self:
        """Split texts into words.

        ``tokens``: the rule, a value of
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
        """Number the distinct tokens of texts; each text ends with END."""
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
        """Character trigrams of each of the T words."""
        return character_trigrams(self.words).take(self.texts.values)


def _ended_treebank_words(texts: Sequence[str]) -> Iterator[str]:
    for text in texts:
        yield from treebank_words(text)
        yield END
