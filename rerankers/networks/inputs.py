"""Inputs of models: texts as identifiers of words, word trigrams or URL trigrams, and their pairs.

Texts differ in length, so an input of many texts is ragged; only a batch is padded. Posts repeat
the same few thousand words: ids, IDF and trigrams are looked up once for each distinct word.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np
import numpy.typing as npt
import torch

from tweetrerank.rerankers import features
from tweetrerank.rerankers.networks import base
from tweetrerank.rerankers.networks.base import Inputs, Interactions, Reranker, Terms
from tweetrerank.rerankers.pairs import PRIOR, Pairs
from tweetrerank.rerankers.text.lexicon import Lexicon
from tweetrerank.rerankers.text.ragged import Ragged, Rows
from tweetrerank.rerankers.text.vocabulary import Idf, Vocabulary
from tweetrerank.rerankers.text.words import (
    ascii_text,
    character_trigrams,
    mask_digits,
    url_trigrams,
)


@dataclass(frozen=True)
class TokenIds(Ragged):
    """One input of N texts: int32 ids from 1 on, as 0 is padding. ``weights`` [T] are the
    importance of each token of a query; None for posts."""

    weights: npt.NDArray[np.float32] | None = None

    def batch(self, rows: Rows, device: torch.device) -> Terms:
        """The texts ``rows`` [B] as tensors [B, L], L the length of the longest (at least 1)."""
        ids = torch.from_numpy(self.take(rows).padded(0)).to(device)
        weights = torch.zeros(len(rows), 0, device=device)
        if self.weights is not None:
            own = Ragged(self.weights, self.starts).take(rows).padded(0)
            weights = torch.from_numpy(own).to(device)
        return Terms(ids.long(), weights)


@dataclass(frozen=True)
class TextEncoder:
    """Texts to token ids, by a vocabulary and a source of IDF."""

    vocabulary: Vocabulary
    idf: Idf

    def tokens(
        self, model: Reranker, side: str, texts: Sequence[str], urls: Sequence[str] = ()
    ) -> dict[str, TokenIds]:
        """The inputs of a side that ``model`` reads; those of queries have weights. Trigrams of
        whole texts have a classical IDF of their own."""
        reading, is_query = model.reading, side == base.QUERY
        inputs = model.query_inputs if is_query else model.post_inputs
        lexicon = Lexicon.from_texts(texts, reading.tokens)
        starts, word, tokens = (
            lexicon.texts.starts,
            lexicon.texts.values,
            dict[str, TokenIds](),
        )
        weights: npt.NDArray[np.float32] | None = None
        if is_query:
            weights = self.idf.weights(lexicon.words, model.idf != "relative")[word]
        for name in {base.WORDS, base.MASKED_WORDS}.intersection(inputs):
            words = (
                lexicon.words
                if name == base.WORDS
                else [*map(mask_digits, lexicon.words)]
            )
            ids = np.array(self.vocabulary.ids(words), dtype=np.int32)
            tokens[name] = TokenIds(ids[word], starts, weights)
        if base.TRIGRAMS in inputs and reading.trigrams == "text":
            grams = character_trigrams([ascii_text(text) for text in texts])
            own = self.idf.trigram_weights(grams.values) if is_query else None
            tokens[base.TRIGRAMS] = TokenIds(grams.values + 1, grams.starts, own)
        elif base.TRIGRAMS in inputs:
            grams = lexicon.trigrams()
            if weights is not None:
                weights = np.repeat(weights, grams.lengths)
                if model.idf == "phrases":
                    # A trigram is in all posts of its word, which the source may lack.
                    weights = np.minimum(
                        weights, self.idf.trigram_weights(grams.values)
                    )
            tokens[base.TRIGRAMS] = TokenIds(
                grams.values + 1, grams.starts[starts], weights
            )
        if base.URL_TRIGRAMS in inputs:
            grams = url_trigrams(urls, reading.urls)
            tokens[base.URL_TRIGRAMS] = TokenIds(grams.values + 1, grams.starts)
        return tokens


@dataclass
class Tokenized:
    """P pairs with the token ids that a model reads, by input, and the priors if it reads them."""

    queries: dict[str, TokenIds]
    posts: dict[str, TokenIds]
    query_index: Rows  # [P]
    post_index: Rows  # [P]
    prior: npt.NDArray[np.float32] | None = None  # [P]
    known: Interactions = field(default_factory=dict)
    """Interactions of these and other pairs, if they are kept; those of short queries end with zero
    positions."""
    places: Rows | None = None  # [P] place of each pair in ``known``

    @classmethod
    def from_pairs(cls, pairs: Pairs, encoder: TextEncoder, model: Reranker) -> Self:
        """Tokenize the texts of ``pairs`` as ``model`` reads them."""
        prior = None
        if model.reads_prior:
            prior = features.table(pairs, (PRIOR,), encoder.idf).values[:, 0]
        queries = encoder.tokens(model, base.QUERY, pairs.queries)
        posts = encoder.tokens(model, base.POST, pairs.texts, pairs.urls)
        return cls(queries, posts, pairs.query_index, pairs.post_index, prior)

    def compared(self, model: Reranker, rows: Rows) -> Interactions:
        """Interactions of the pairs ``rows`` [B]."""
        if self.places is None:
            return model.interactions(*self.batch(rows, model.device_of()))
        index = torch.from_numpy(self.places[rows]).to(model.device_of())
        return {name: values[index] for name, values in self.known.items()}

    def scores_of(self, model: Reranker, rows: Rows) -> torch.Tensor:
        """Scores [B] of the pairs ``rows`` [B], with gradients if they are enabled."""
        return model.integrate(self.compared(model, rows))

    def batch(
        self, rows: Rows, device: torch.device
    ) -> tuple[Inputs, Inputs, torch.Tensor, torch.Tensor | None]:
        """Arguments of :meth:`Reranker.interactions` for the pairs ``rows`` [B]."""
        queries, query_of_post = np.unique(self.query_index[rows], return_inverse=True)
        posts = self.post_index[rows]
        return (
            {name: ids.batch(queries, device) for name, ids in self.queries.items()},
            {name: ids.batch(posts, device) for name, ids in self.posts.items()},
            torch.from_numpy(query_of_post).to(device),
            None
            if self.prior is None
            else torch.from_numpy(self.prior[rows]).to(device),
        )

    def take(self, rows: Rows) -> Self:
        """The pairs ``rows``, with all texts."""
        names = ("query_index", "post_index", "prior", "places")
        of_pairs = {
            name: each for name in names if (each := getattr(self, name)) is not None
        }
        return replace(self, **{name: each[rows] for name, each in of_pairs.items()})

    def lengths(self) -> Rows:
        """[P] terms of each pair's post in all inputs, the measure of its work."""
        lengths = [ids.lengths_of(self.post_index) for ids in self.posts.values()]
        return np.sum(lengths, axis=0)
