"""Texts as places in a list of their distinct words.

Whatever is known of a word (identifier, importance, trigrams) is looked up once for each distinct
word and spread over all places by arrays: posts repeat the same few thousand words.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rerankers.text.words import END, character_trigrams, shortened, tokens_of


@dataclass(frozen=True)
class Lexicon:
    """N texts of T words in all, of which V are distinct.

    Attributes:
        words: the V distinct words; now and then two are alike.
        places: [T] row of ``words``, text by text.
        starts: [N + 1] where each text begins in ``places``.
    """

    words: list[str]
    places: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]

    @classmethod
    def of(cls, texts: Sequence[str]) -> "Lexicon":
        """Read texts; see :func:`rerankers.text.words.words`."""
        rows = {END: 0}
        numbers = [rows.setdefault(token, len(rows)) for token in tokens_of(texts)]
        places = np.array(numbers, dtype=np.int64)
        ends = np.flatnonzero(places == 0)
        # The n-th text is preceded by n ends, which are no words.
        starts = np.concatenate([[0], ends - np.arange(len(ends))])
        words = [shortened(token) for token in list(rows)[1:]]
        return cls(words, places[places > 0] - 1, starts)

    def trigrams(self) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        """The trigrams of all words of all texts, and how many each of the T words has."""
        every, counts = character_trigrams(self.words)
        first = np.cumsum(counts) - counts
        lengths = counts[self.places]
        before = np.cumsum(lengths) - lengths
        # Of a collection these are its largest arrays, so they are few, and narrow.
        rows = np.repeat((first[self.places] - before).astype(np.int32), lengths)
        rows += np.arange(len(rows), dtype=np.int32)
        return every[rows], lengths

    def spread(self, lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Where each text begins if its words are ``lengths`` [T] long: [N + 1]."""
        before = np.concatenate([[0], np.cumsum(lengths)])
        starts: npt.NDArray[np.int64] = before[self.starts]
        return starts
