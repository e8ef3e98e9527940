"""The views of a text that models read, as arrays: words, word trigrams, URL trigrams.

Texts have different lengths, so a view of many texts is kept packed (one long array and the
places where each text begins) and is padded only when a batch is made.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from rerankers.base import MASKED_WORDS, TRIGRAMS, URL_TRIGRAMS, WORDS, Terms
from rerankers.text import mask_digits, string_trigrams, url_text, word_trigrams, words
from rerankers.vocabulary import Idf, Vocabulary


@dataclass(frozen=True)
class Packed:
    """One view of N texts.

    Attributes:
        ids: [T] term identifiers of all texts, one text after the other.
        starts: [N + 1] where each text begins in ``ids``.
        weights: [T] importance of each term; None for posts, which have none.
    """

    ids: npt.NDArray[np.int32]
    starts: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float32] | None = None

    @classmethod
    def of(
        cls,
        ids: Sequence[npt.ArrayLike],
        weights: Sequence[npt.NDArray[np.float32]] | None = None,
    ) -> "Packed":
        """Pack one array of identifiers (and weights) a text."""
        arrays = [np.asarray(row, dtype=np.int32) for row in ids]
        starts = np.zeros(len(arrays) + 1, dtype=np.int64)
        np.cumsum([len(row) for row in arrays], out=starts[1:])
        empty_ids, no_weights = np.zeros(0, np.int32), np.zeros(0, np.float32)
        return cls(
            np.concatenate([empty_ids, *arrays]),
            starts,
            None if weights is None else np.concatenate([no_weights, *weights]),
        )

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """[N] terms of each text."""
        return np.diff(self.starts)

    def padded(self, rows: npt.NDArray[np.int64], device: torch.device) -> Terms:
        """The texts ``rows`` [B] as tensors [B, L], L the length of the longest (at least 1)."""
        starts, lengths = self.starts[rows], self.lengths[rows]
        columns = np.arange(max(1, int(lengths.max(initial=0))))
        inside = columns < lengths[:, None]
        places = np.where(inside, starts[:, None] + columns, 0)
        ids = np.zeros(places.shape, dtype=np.int64)
        weights = np.zeros((len(rows), 0) if self.weights is None else places.shape, np.float32)
        if len(self.ids):
            ids = np.where(inside, self.ids[places], 0)
            if self.weights is not None:
                weights = np.where(inside, self.weights[places], np.float32(0))
        return Terms(
            torch.from_numpy(ids.astype(np.int64)).to(device), torch.from_numpy(weights).to(device)
        )


@dataclass(frozen=True)
class TextEncoder:
    """Texts to packed views, by a vocabulary and a source of IDF."""

    vocabulary: Vocabulary
    idf: Idf

    def queries(self, texts: Sequence[str], views: Sequence[str]) -> Mapping[str, Packed]:
        """The views of queries, with weights; a trigram has its word's weight."""
        tokens = [words(text) for text in texts]
        weights = [self.idf.weights(row) for row in tokens]
        packed = {}
        if WORDS in views:
            packed[WORDS] = Packed.of([self.vocabulary.ids(row) for row in tokens], weights)
        if MASKED_WORDS in views:
            packed[MASKED_WORDS] = Packed.of([self._masked_ids(row) for row in tokens], weights)
        if TRIGRAMS in views:
            spread = [
                np.repeat(row_weights, [len(word_trigrams([word])) for word in row])
                for row, row_weights in zip(tokens, weights, strict=True)
            ]
            packed[TRIGRAMS] = Packed.of([word_trigrams(row) + 1 for row in tokens], spread)
        return packed

    def posts(
        self, texts: Sequence[str], urls: Sequence[str], views: Sequence[str]
    ) -> Mapping[str, Packed]:
        """The views of posts."""
        tokens = [words(text) for text in texts]
        packed = {}
        if WORDS in views:
            packed[WORDS] = Packed.of([self.vocabulary.ids(row) for row in tokens])
        if MASKED_WORDS in views:
            packed[MASKED_WORDS] = Packed.of([self._masked_ids(row) for row in tokens])
        if TRIGRAMS in views:
            packed[TRIGRAMS] = Packed.of([word_trigrams(row) + 1 for row in tokens])
        if URL_TRIGRAMS in views:
            packed[URL_TRIGRAMS] = Packed.of([string_trigrams(url_text(u)) + 1 for u in urls])
        return packed

    def _masked_ids(self, tokens: Sequence[str]) -> list[int]:
        return self.vocabulary.ids([mask_digits(token) for token in tokens])
