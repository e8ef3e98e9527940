"""Inputs of models: a text as word ids, word trigrams or URL trigrams.

Texts differ in length, so an input of many texts is ragged; only a batch is padded. Posts repeat
the same few thousand words: ids, IDF and trigrams are looked up once for each distinct word.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from rerankers.devices import is_host
from rerankers.networks.base import MASKED_WORDS, TRIGRAMS, URL_TRIGRAMS, WORDS, Terms
from rerankers.text.lexicon import Lexicon
from rerankers.text.ragged import Ragged, Rows
from rerankers.text.vocabulary import Idf, Vocabulary
from rerankers.text.words import (
    Reading,
    ascii_text,
    character_trigrams,
    mask_digits,
    url_trigrams,
)

OURS = Reading()

MULTIPLE = 8
"""Texts on a GPU are padded to multiples of so many terms: few shapes, fast matrix products."""


@dataclass(frozen=True)
class TokenIds(Ragged):
    """One input of N texts: int32 ids from 1 on, as 0 is padding.

    Attributes:
        weights: [T] importance of each token of a query; None for posts.
    """

    weights: npt.NDArray[np.float32] | None = None

    def batch(self, rows: Rows, device: torch.device) -> Terms:
        """The texts ``rows`` [B] as tensors [B, L], L the length of the longest (at least 1).

        On a GPU it is the next multiple of :data:`MULTIPLE`.
        """
        part = self.take(rows)
        longest = max(1, int(part.lengths.max(initial=0)))
        if not is_host(device):
            longest += -longest % MULTIPLE
        borders = on_device(part.starts, device).unsqueeze(1)
        places = borders[:-1] + torch.arange(longest, device=device)
        # Padding is the number after the last one.
        places = torch.where(places < borders[1:], places, len(part.values))
        ids = on_device(np.append(part.values, np.int32(0)), device)[places]
        weights = torch.zeros(len(rows), 0, device=device)
        if self.weights is not None:
            own = Ragged(self.weights, self.starts).take(rows).values
            weights = on_device(np.append(own, np.float32(0)), device)[places]
        return Terms(ids.long(), weights)


def on_device(array: npt.NDArray[Any], device: torch.device) -> torch.Tensor:
    """``array`` as a tensor; the copy to a GPU is asynchronous, from pinned memory."""
    tensor = torch.from_numpy(array)
    if device.type != "cuda" or not array.size:
        return tensor.to(device)
    # PyTorch reuses a pinned block only after its copy has ended.
    return tensor.pin_memory().to(device, non_blocking=True)


@dataclass(frozen=True)
class TextEncoder:
    """Texts to token ids, by a vocabulary and a source of IDF."""

    vocabulary: Vocabulary
    idf: Idf

    def queries(
        self,
        texts: Sequence[str],
        inputs: Sequence[str],
        idf: str = "relative",
        reading: Reading = OURS,
    ) -> dict[str, TokenIds]:
        """The inputs of queries, weighted by one of :data:`~rerankers.networks.base.IDF_FORMS`.

        Trigrams of whole texts have a classical IDF of their own.
        """
        lexicon = Lexicon.from_texts(texts, reading.tokens)
        weights = self.idf.weights(lexicon.words, idf != "relative")[lexicon.texts.values]
        tokens = {
            name: TokenIds(ids.values, ids.starts, weights)
            for name, ids in self._words(lexicon, inputs).items()
        }
        if TRIGRAMS in inputs and reading.trigrams == "text":
            grams = character_trigrams([ascii_text(text) for text in texts])
            own = self.idf.trigram_weights(grams.values)
            tokens[TRIGRAMS] = TokenIds(grams.values + 1, grams.starts, own)
        elif TRIGRAMS in inputs:
            by_word = lexicon.trigrams()
            starts = by_word.starts[lexicon.texts.starts]
            weights = np.repeat(weights, by_word.lengths)
            if idf == "phrases":
                # A trigram is in all posts of its word, which may be one that the source lacks.
                weights = np.minimum(weights, self.idf.trigram_weights(by_word.values))
            tokens[TRIGRAMS] = TokenIds(by_word.values + 1, starts, weights)
        return tokens

    def posts(
        self,
        texts: Sequence[str],
        urls: Sequence[str],
        inputs: Sequence[str],
        reading: Reading = OURS,
    ) -> dict[str, TokenIds]:
        """The inputs of posts."""
        tokens = {}
        if {WORDS, MASKED_WORDS, TRIGRAMS} & set(inputs):
            lexicon = Lexicon.from_texts(texts, reading.tokens)
            tokens = self._words(lexicon, inputs)
            if TRIGRAMS in inputs and reading.trigrams == "text":
                grams = character_trigrams([ascii_text(text) for text in texts])
                tokens[TRIGRAMS] = TokenIds(grams.values + 1, grams.starts)
            elif TRIGRAMS in inputs:
                by_word = lexicon.trigrams()
                tokens[TRIGRAMS] = TokenIds(
                    by_word.values + 1, by_word.starts[lexicon.texts.starts]
                )
        if URL_TRIGRAMS in inputs:
            trigrams = url_trigrams(urls, reading.urls)
            tokens[URL_TRIGRAMS] = TokenIds(trigrams.values + 1, trigrams.starts)
        return tokens

    def _words(self, lexicon: Lexicon, inputs: Sequence[str]) -> dict[str, TokenIds]:
        """The inputs whose tokens are words."""
        spellings = {}
        if WORDS in inputs:
            spellings[WORDS] = lexicon.words
        if MASKED_WORDS in inputs:
            spellings[MASKED_WORDS] = [mask_digits(word) for word in lexicon.words]
        return {
            name: TokenIds(
                np.array(self.vocabulary.ids(words), dtype=np.int32)[lexicon.texts.values],
                lexicon.texts.starts,
            )
            for name, words in spellings.items()
        }
