"""Inputs of models: texts as identifiers of words, word trigrams or URL trigrams, and their pairs.

Texts differ in length, so an input of many texts is ragged; only a batch is padded. Posts repeat
the same few thousand words: ids, IDF and trigrams are looked up once for each distinct word.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch

from rerankers import features
from rerankers.errors import RerankerError
from rerankers.networks.base import (
    MASKED_WORDS,
    TRIGRAMS,
    URL_TRIGRAMS,
    WORDS,
    Inputs,
    Interactions,
    Reranker,
    Terms,
)
from rerankers.pairs import PRIOR, Pairs
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


@dataclass(frozen=True)
class TokenIds(Ragged):
    """One input of N texts: int32 ids from 1 on, as 0 is padding.

    Attributes:
        weights: [T] importance of each token of a query; None for posts.
    """

    weights: npt.NDArray[np.float32] | None = None

    def batch(self, rows: Rows, device: torch.device) -> Terms:
        """The texts ``rows`` [B] as tensors [B, L], L the length of the longest (at least 1)."""
        part = self.take(rows)
        longest = max(1, int(part.lengths.max(initial=0)))
        borders = torch.from_numpy(part.starts).to(device).unsqueeze(1)
        places = borders[:-1] + torch.arange(longest, device=device)
        # Padding is the number after the last one.
        places = torch.where(places < borders[1:], places, len(part.values))
        ids = torch.from_numpy(np.append(part.values, np.int32(0))).to(device)[places]
        weights = torch.zeros(len(rows), 0, device=device)
        if self.weights is not None:
            own = Ragged(self.weights, self.starts).take(rows).values
            weights = torch.from_numpy(np.append(own, np.float32(0))).to(device)[places]
        return Terms(ids.long(), weights)


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
        return self._tokens(texts, inputs, reading, idf)

    def posts(
        self,
        texts: Sequence[str],
        urls: Sequence[str],
        inputs: Sequence[str],
        reading: Reading = OURS,
    ) -> dict[str, TokenIds]:
        """The inputs of posts."""
        tokens = self._tokens(texts, inputs, reading)
        if URL_TRIGRAMS in inputs:
            trigrams = url_trigrams(urls, reading.urls)
            tokens[URL_TRIGRAMS] = TokenIds(trigrams.values + 1, trigrams.starts)
        return tokens

    def _tokens(
        self, texts: Sequence[str], inputs: Sequence[str], reading: Reading, idf: str = ""
    ) -> dict[str, TokenIds]:
        """Words and trigrams of texts, with weights if there is a form of ``idf``."""
        lexicon = Lexicon.from_texts(texts, reading.tokens)
        starts, word, tokens = lexicon.texts.starts, lexicon.texts.values, dict[str, TokenIds]()
        weights: npt.NDArray[np.float32] | None = None
        if idf:
            weights = self.idf.weights(lexicon.words, idf != "relative")[word]
        for name in {WORDS, MASKED_WORDS}.intersection(inputs):
            words = lexicon.words if name == WORDS else [*map(mask_digits, lexicon.words)]
            ids = np.array(self.vocabulary.ids(words), dtype=np.int32)
            tokens[name] = TokenIds(ids[word], starts, weights)
        if TRIGRAMS in inputs and reading.trigrams == "text":
            grams = character_trigrams([ascii_text(text) for text in texts])
            own = self.idf.trigram_weights(grams.values) if idf else None
            tokens[TRIGRAMS] = TokenIds(grams.values + 1, grams.starts, own)
        elif TRIGRAMS in inputs:
            grams = lexicon.trigrams()
            if weights is not None:
                weights = np.repeat(weights, grams.lengths)
                if idf == "phrases":
                    # A trigram is in all posts of its word, which the source may lack.
                    weights = np.minimum(weights, self.idf.trigram_weights(grams.values))
            tokens[TRIGRAMS] = TokenIds(grams.values + 1, grams.starts[starts], weights)
        return tokens


class Scorable(Protocol):
    """Pairs that a model can score by row: tokenized ones, or cached interactions."""

    query_index: Rows  # [P] query of each pair

    def compared(self, model: Reranker, rows: Rows) -> Interactions:
        """Interactions of the pairs ``rows`` [B]."""

    def lengths(self) -> Rows:
        """[P] a number for each pair that grows with its work."""

    def scores_of(self, model: Reranker, rows: Rows) -> torch.Tensor:
        """Scores [B] of the pairs ``rows`` [B], with gradients if they are enabled."""
        return model.integrate(self.compared(model, rows))


class Batch(NamedTuple):
    """Arguments of :meth:`rerankers.networks.base.Reranker.interactions`, which describes them."""

    queries: Inputs
    posts: Inputs
    query_of_post: torch.Tensor
    features: torch.Tensor | None


@dataclass
class Tokenized(Scorable):
    """P pairs with the token ids and features that a model reads.

    Attributes:
        queries: input -> token ids of the queries.
        posts: input -> token ids of the posts.
        query_index: [P] query of each pair.
        post_index: [P] post of each pair.
        features: [P, K] of the model's feature families; None without families.
        features_of: ``query_index`` and ``post_index`` of other pairs of the same texts -> features
            [P, K].
    """

    queries: dict[str, TokenIds]
    posts: dict[str, TokenIds]
    query_index: Rows
    post_index: Rows
    features: npt.NDArray[np.float32] | None = None
    features_of: Callable[[Rows, Rows], npt.NDArray[np.float32]] | None = None

    @classmethod
    def from_pairs(cls, pairs: Pairs, encoder: TextEncoder, model: Reranker) -> Tokenized:
        """Tokenize the texts of ``pairs`` and compute the features that ``model`` declares."""
        tokenized = cls(
            encoder.queries(pairs.queries, model.query_inputs, model.idf, model.reading),
            encoder.posts(pairs.texts, pairs.urls, model.post_inputs, model.reading),
            pairs.query_index,
            pairs.post_index,
        )
        if families := model.feature_families:
            tokenized.features = features.table(pairs, families, encoder.idf).values
            tokenized.features_of = partial(_features_of, pairs, families, encoder.idf)
        return tokenized

    def compared(self, model: Reranker, rows: Rows) -> Interactions:
        """Interactions of the pairs ``rows`` [B]."""
        return model.interactions(*self.batch(rows, model.device_of()))

    def batch(self, rows: Rows, device: torch.device) -> Batch:
        """Arguments of a model's forward pass for the pairs ``rows`` [B]."""
        queries, query_of_post = np.unique(self.query_index[rows], return_inverse=True)
        posts = self.post_index[rows]
        return Batch(
            {name: ids.batch(queries, device) for name, ids in self.queries.items()},
            {name: ids.batch(posts, device) for name, ids in self.posts.items()},
            torch.from_numpy(query_of_post).to(device),
            None if self.features is None else torch.from_numpy(self.features[rows]).to(device),
        )

    def take(self, rows: Rows) -> Tokenized:
        """The pairs ``rows``, with all texts."""
        return replace(
            self,
            query_index=self.query_index[rows],
            post_index=self.post_index[rows],
            features=None if self.features is None else self.features[rows],
        )

    def with_pairs(self, query_index: Rows, post_index: Rows) -> Tokenized:
        """These pairs, followed by other pairs of the same texts, which are in no run.

        Raises:
            RerankerError: a feature family reads the score in a run.
        """
        both = self.features
        if both is not None and self.features_of is not None:
            both = np.concatenate([both, self.features_of(query_index, post_index)])
        return replace(
            self,
            query_index=np.concatenate([self.query_index, query_index]),
            post_index=np.concatenate([self.post_index, post_index]),
            features=both,
        )

    def lengths(self) -> Rows:
        """[P] terms of each pair's post in all inputs, the measure of its work."""
        lengths = np.zeros(len(self.post_index), dtype=np.int64)
        for ids in self.posts.values():
            lengths += ids.lengths_of(self.post_index)
        return lengths


def _features_of(
    pairs: Pairs, families: Sequence[str], idf: Idf, query_index: Rows, post_index: Rows
) -> npt.NDArray[np.float32]:
    """Features [P, K] of other pairs of the texts of ``pairs``, without signals."""
    if ranked := [name for name in families if features.signals_of([name]) - {PRIOR}]:
        raise RerankerError(
            "corrupted pairs are in no run, so they have no score in it for the features "
            f"{', '.join(ranked)}; train with another `sampling`"
        )
    others = replace(pairs, query_index=query_index, post_index=post_index, signals={})
    return features.table(others, families, idf).values
