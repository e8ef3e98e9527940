"""Inputs of models: texts as identifiers of words or trigrams, and pairs of texts.

Texts differ in length, so an input of many texts is ragged, and only a batch is padded.
Posts repeat the same few thousand words, so identifiers, IDF and trigrams are looked up
once for each distinct word.
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

Weights = npt.NDArray[np.float32]


@dataclass(frozen=True)
class TokenIds(Ragged):
    """One input of N texts, as int32 identifiers. They start at 1, since 0 is padding.

    ``weights`` [T] are the importance of each token of a query, and None for posts.
    """

    weights: Weights | None = None

    def batch(self, rows: Rows, device: torch.device) -> Terms:
        """Return the texts ``rows`` [B] as tensors [B, L].

        L is the length of the longest text, but at least 1.
        """
        ids = torch.from_numpy(self.take(rows).padded(0)).to(device)
        weights = torch.zeros(len(rows), 0, device=device)
        if self.weights is not None:
            padded = Ragged(self.weights, self.starts).take(rows).padded(0)
            weights = torch.from_numpy(padded).to(device)
        return Terms(ids.long(), weights)


@dataclass(frozen=True)
class TextEncoder:
    """Turns texts into token identifiers, by a vocabulary and a source of IDF."""

    vocabulary: Vocabulary
    idf: Idf

    def tokens(
        self,
        model: Reranker,
        side: str,
        texts: Sequence[str],
        urls: Sequence[str] = (),
    ) -> dict[str, TokenIds]:
        """Return the inputs that ``model`` reads of one side.

        The inputs of queries have weights.
        """
        reading = model.reading
        is_query = side == base.QUERY
        lexicon = Lexicon.from_texts(texts, reading.tokens)
        weights: Weights | None = None
        if is_query:
            by_word = self.idf.weights(lexicon.words, model.idf != "relative")
            weights = by_word[lexicon.texts.values]  # [T]
        tokens: dict[str, TokenIds] = {}
        for name in model.query_inputs if is_query else model.post_inputs:
            if name == base.WORDS:
                tokens[name] = self._words(lexicon, lexicon.words, weights)
            elif name == base.MASKED_WORDS:
                masked = [mask_digits(word) for word in lexicon.words]
                tokens[name] = self._words(lexicon, masked, weights)
            elif name == base.URL_TRIGRAMS:
                trigrams = url_trigrams(urls, reading.urls)
                tokens[name] = TokenIds(trigrams.values + 1, trigrams.starts)
            elif reading.trigrams == "text":
                tokens[name] = self._trigrams_of_texts(texts, is_query)
            else:
                is_of_phrases = model.idf == "phrases"
                tokens[name] = self._trigrams_of_words(lexicon, weights, is_of_phrases)
        return tokens

    def _words(
        self,
        lexicon: Lexicon,
        words: Sequence[str],
        weights: Weights | None,
    ) -> TokenIds:
        """Return the identifiers of the words of all texts.

        ``words`` are the forms in which the vocabulary looks up the lexicon's distinct
        words.
        """
        ids = np.array(self.vocabulary.ids(words), dtype=np.int32)
        return TokenIds(ids[lexicon.texts.values], lexicon.texts.starts, weights)

    def _trigrams_of_texts(self, texts: Sequence[str], is_query: bool) -> TokenIds:
        """Return trigrams that may span words.

        In queries, their classical IDF is the weight.
        """
        trigrams = character_trigrams([ascii_text(text) for text in texts])
        weights: Weights | None = None
        if is_query:
            weights = self.idf.trigram_weights(trigrams.values)
        return TokenIds(trigrams.values + 1, trigrams.starts, weights)

    def _trigrams_of_words(
        self,
        lexicon: Lexicon,
        weights: Weights | None,
        is_of_phrases: bool,
    ) -> TokenIds:
        """Return trigrams within words, with the weights of their words.

        ``weights`` [T] belong to the words, or are None.
        """
        trigrams = lexicon.trigrams()  # One list for each of the T words
        if weights is not None:
            weights = np.repeat(weights, trigrams.lengths)
            if is_of_phrases:
                # A post with the word also has its trigrams, even if the source of IDF
                # lacks the word.
                of_trigrams = self.idf.trigram_weights(trigrams.values)
                weights = np.minimum(weights, of_trigrams)
        starts = trigrams.starts[lexicon.texts.starts]
        return TokenIds(trigrams.values + 1, starts, weights)


@dataclass
class Tokenized:
    """P pairs as a model reads them: the identifiers of each input, and priors."""

    queries: dict[str, TokenIds]
    posts: dict[str, TokenIds]
    query_index: Rows  # [P]
    post_index: Rows  # [P]
    prior: Weights | None = None  # [P]; None if the model reads no priors
    cache: Interactions = field(default_factory=dict)
    """Cached interactions of these pairs, and perhaps of others. Interactions of short
    queries end with zero positions."""
    cache_rows: Rows | None = None
    """[P] row of each pair in ``cache``, or None without a cache."""

    @classmethod
    def from_pairs(
        cls,
        pairs: Pairs,
        encoder: TextEncoder,
        model: Reranker,
    ) -> Self:
        """Tokenize the texts of ``pairs`` in the way that ``model`` reads them."""
        prior = None
        if model.reads_prior:
            table = features.table(pairs, (PRIOR,), encoder.idf)
            prior = table.values[:, 0]
        queries = encoder.tokens(model, base.QUERY, pairs.queries)
        posts = encoder.tokens(
            model,
            base.POST,
            pairs.texts,
            pairs.urls,
        )
        return cls(
            queries,
            posts,
            pairs.query_index,
            pairs.post_index,
            prior,
        )

    def interactions_of(self, model: Reranker, rows: Rows) -> Interactions:
        """Return the interactions of the pairs ``rows`` [B].

        They are read from the cache if there is one.
        """
        device = model.device_of()
        if self.cache_rows is None:
            return model.interactions(*self.batch(rows, device))
        index = torch.from_numpy(self.cache_rows[rows]).to(device)
        return {name: values[index] for name, values in self.cache.items()}

    def scores_of(self, model: Reranker, rows: Rows) -> torch.Tensor:
        """Return the scores [B] of the pairs ``rows`` [B].

        They have gradients if gradients are enabled.
        """
        return model.integrate(self.interactions_of(model, rows))

    def batch(
        self,
        rows: Rows,
        device: torch.device,
    ) -> tuple[Inputs, Inputs, torch.Tensor, torch.Tensor | None]:
        """Return the arguments of :meth:`Reranker.interactions` for some pairs.

        ``rows`` [B] are the rows of the pairs.
        """
        queries, query_of_post = np.unique(self.query_index[rows], return_inverse=True)
        posts = self.post_index[rows]
        prior: torch.Tensor | None = None
        if self.prior is not None:
            prior = torch.from_numpy(self.prior[rows]).to(device)
        return (
            _batches(self.queries, queries, device),
            _batches(self.posts, posts, device),
            torch.from_numpy(query_of_post).to(device),
            prior,
        )

    def take(self, rows: Rows) -> Self:
        """Return the pairs ``rows``. All texts are kept."""
        prior = self.prior
        cache_rows = self.cache_rows
        return replace(
            self,
            query_index=self.query_index[rows],
            post_index=self.post_index[rows],
            prior=None if prior is None else prior[rows],
            cache_rows=None if cache_rows is None else cache_rows[rows],
        )

    def lengths(self) -> Rows:
        """Return the number of terms of each pair's post in all inputs, as [P].

        It measures the work that a pair causes.
        """
        lengths = [ids.lengths_of(self.post_index) for ids in self.posts.values()]
        return np.sum(lengths, axis=0)


def _batches(
    inputs: dict[str, TokenIds], rows: Rows, device: torch.device
) -> dict[str, Terms]:
    """Return each input of the texts ``rows``, as padded batches."""
    return {name: ids.batch(rows, device) for name, ids in inputs.items()}
