"""Texts as rows of their distinct words."""

from collections.abc import Sequence
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
    """N texts of T words in all, V of them distinct."""

    words: list[str]  # The V distinct words; a few may be equal after shortening
    texts: Ragged  # Row of ``words`` for each word of each text

    @classmethod
    def from_texts(cls, texts: Sequence[str], tokens: str = "words") -> Self:
        """Split texts into the ``tokens`` of a :class:`tweetrerank.rerankers.text.words.Reading`."""
        rows, is_ours = {END: 0}, tokens == "words"
        treebank = (token for text in texts for token in (*treebank_words(text), END))
        found = tokens_of(texts) if is_ours else treebank
        numbers = [rows.setdefault(token, len(rows)) for token in found]
        places = Ragged.split(np.array(numbers, dtype=np.int64), 0)
        words = [shortened(token) if is_ours else token for token in list(rows)[1:]]
        return cls(words, Ragged(places.values - 1, places.starts))

    def trigrams(self) -> Ragged:
        """The character trigrams of each of the T words."""
        return character_trigrams(self.words).take(self.texts.values)
