"""The inputs of a text that models read, as arrays: words, word trigrams, URL trigrams.

Texts have different lengths, so a view of many texts is kept packed (one long array and the
places where each text begins) and is padded only when a batch is made.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from rerankers.base import MASKED_WORDS, TRIGRAMS, URL_TRIGRAMS, WORDS, Terms
from rerankers.text.lexicon import Lexicon
from rerankers.text.vocabulary import Idf, Vocabulary
from rerankers.text.words import mask_digits, url_trigrams


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
        return Terms(on_device(ids.astype(np.int64), device), on_device(weights, device))


def on_device(array: npt.NDArray[Any], device: torch.device) -> torch.Tensor:
    """``array`` as a tensor; a GPU fetches it by itself, from memory that is pinned for that."""
    tensor = torch.from_numpy(array)
    if device.type != "cuda" or not array.size:
        return tensor.to(device)
    # PyTorch does not give a pinned block to anyone else before it has been copied.
    return tensor.pin_memory().to(device, non_blocking=True)


@dataclass(frozen=True)
class TextEncoder:
    """Texts to packed inputs, by a vocabulary and a source of IDF."""

    vocabulary: Vocabulary
    idf: Idf

    def queries(self, texts: Sequence[str], inputs: Sequence[str]) -> Mapping[str, Packed]:
        """The inputs of queries, with weights; a trigram has its word's weight."""
        lexicon = Lexicon.of(texts)
        weights = self.idf.weights(lexicon.words)[lexicon.places]
        packed = self._words(lexicon, inputs)
        found = {view: Packed(p.ids, p.starts, weights) for view, p in packed.items()}
        if TRIGRAMS in inputs:
            trigrams, lengths = lexicon.trigrams()
            found[TRIGRAMS] = Packed(
                trigrams + 1, lexicon.spread(lengths), np.repeat(weights, lengths)
            )
        return found

    def posts(
        self, texts: Sequence[str], urls: Sequence[str], inputs: Sequence[str]
    ) -> Mapping[str, Packed]:
        """The inputs of posts."""
        packed = {}
        if {WORDS, MASKED_WORDS, TRIGRAMS} & set(inputs):
            lexicon = Lexicon.of(texts)
            packed = self._words(lexicon, inputs)
            if TRIGRAMS in inputs:
                trigrams, lengths = lexicon.trigrams()
                packed[TRIGRAMS] = Packed(trigrams + 1, lexicon.spread(lengths))
        if URL_TRIGRAMS in inputs:
            trigrams, lengths = url_trigrams(urls)
            starts = np.concatenate([[0], np.cumsum(lengths)])
            packed[URL_TRIGRAMS] = Packed(trigrams + 1, starts)
        return packed

    def _words(self, lexicon: Lexicon, inputs: Sequence[str]) -> dict[str, Packed]:
        """The inputs whose terms are words."""
        readings = {
            WORDS: lambda: lexicon.words,
            MASKED_WORDS: lambda: [mask_digits(word) for word in lexicon.words],
        }
        return {
            view: Packed(
                np.array(self.vocabulary.ids(read()), dtype=np.int32)[lexicon.places],
                lexicon.starts,
            )
            for view, read in readings.items()
            if view in inputs
        }  # fmt: skip
