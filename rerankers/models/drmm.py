"""DRMM: a histogram of matches for each word of the query.

Jiafeng Guo, Yixing Fan, Qingyao Ai and W. Bruce Croft: *A Deep Relevance Matching Model for Ad-hoc
Retrieval*, CIKM 2016.

Every word of the query is compared with every word of the post by cosine, and its cosines are
sorted into bins of equal width; exact matches have a bin of their own. One small network turns a
histogram into the evidence of its word, and a gate, a softmax over the words of the query, says
how much each word counts. Histograms know neither the order nor the place of words.

Two configurations have names:

``idf`` (the default)
    Log-counts and a gate that reads a word's IDF, the best of the paper's variants: 162 numbers
    are trained.

``vector``
    The same with a gate that reads the word's vector.

What the paper leaves open, or where we differ:

* The logarithm is that of a count plus 1, as an empty bin has the count 0.
* Exact matches are told by the words' identifiers. Another word is none, even if its cosine is 1;
  a word without a vector matches itself, and otherwise whatever its hashed vector happens to be
  near, which is about the middle bin.
* The last tanh keeps the paper's scores within -1 and 1, which suits its hinge loss of margin 1
  and no other. Ours is as steep at 0 and ends at ±``bound``; ``bound=1`` is the paper's.
* IDF is between 0 and 1 here (the paper's is ln N/n), so the gate's weight starts at 5, not
  near 0.
* A query without words scores 0.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from rerankers.base import WORDS, Inputs, Interactions, Reranker, Terms, require_choice
from rerankers.errors import RerankerError
from rerankers.layers.embeddings import mask_of, word_vectors
from rerankers.layers.heads import bounded
from rerankers.layers.similarity import unit_length
from rerankers.text.vocabulary import Vocabulary
from rerankers.training.settings import Settings

GATE_START = 5.0
"""Of the gate's weight on IDF: a word in 1 of 1,000,000 posts counts 50 times one that is in every
second post."""


@dataclass(frozen=True)
class Config:
    """Hyperparameters; the defaults are the configuration ``idf``."""

    histogram: str = "log_count"
    """``count`` (CH), ``normalized`` (NH, shares of the post's words) or ``log_count`` (LCH)."""
    bins: int = 30  # Of a histogram, the last for exact matches (paper: 30)
    gate: str = "idf"
    """What the gate reads of a word: ``idf`` or its ``vector`` (TV)."""
    hidden: int = 5  # Units of the network's hidden layer (paper: 5)
    bound: float = 10.0  # Scores are within ± this (paper: 1)

    def __post_init__(self) -> None:
        require_choice("histogram", self.histogram, ("count", "normalized", "log_count"))
        require_choice("gate", self.gate, ("idf", "vector"))
        if self.bins < 2 or self.bound <= 0:
            raise RerankerError(
                f"settings bins and bound: found {self.bins} and {self.bound}, expected at least "
                "2 and above 0"
            )


class TermVectors(NamedTuple):
    """A batch of texts.

    Attributes:
        terms: as they were read.
        vectors: [B, L, E] of length 1, zeros where there is no word.
    """

    terms: Terms
    vectors: Tensor


class Model(Reranker):
    """The network of section 4; see the module's docstring."""

    config_type = Config
    configurations: ClassVar[Mapping[str, Config]] = {
        "idf": Config(),
        "vector": Config(gate="vector"),
    }
    # The paper's loss with margin 1; the loop's lists take the place of its triples.
    training_settings = Settings(
        loss="pairwise", learning_rate=1e-2, weight_decay=1e-4, batch_topics=12, positives=3,
        negatives=7, steps=50, epochs=20, patience=5,
    )  # fmt: skip
    query_inputs = (WORDS,)
    post_inputs = (WORDS,)

    def __init__(self, config: Config, vocabulary: Vocabulary) -> None:
        super().__init__()
        self.config = config
        self.vectors = word_vectors(vocabulary, "static", unknown=0.25)
        self.evidence = nn.Sequential(
            nn.Linear(config.bins, config.hidden), nn.Tanh(), nn.Linear(config.hidden, 1)
        )
        if config.gate == "idf":
            self.gate = nn.Parameter(torch.full((1,), GATE_START))
        else:  # All words count alike at first.
            self.gate = nn.Parameter(torch.zeros(vocabulary.vectors.shape[1]))

    def encode_queries(self, inputs: Inputs) -> TermVectors:
        """Look Q queries up."""
        return self._encode(inputs)

    def encode_posts(self, inputs: Inputs) -> TermVectors:
        """Look D posts up."""
        return self._encode(inputs)

    def _encode(self, inputs: Inputs) -> TermVectors:
        terms = inputs[WORDS]
        return TermVectors(terms, unit_length(self.vectors(terms.ids)))

    def interact(
        self, queries: TermVectors, posts: TermVectors, query_of_post: Tensor
    ) -> Interactions:
        """Histograms [P, Lq, bins] and, for the gate, identifier and IDF of each word [P, Lq, 2].

        An identifier stands for its word's vector: kept for every pair, vectors would be the
        better part of the memory. Up to 2²⁴ it is exact as a number with a fraction.
        """
        ids = queries.terms.ids[query_of_post]  # [P, Lq]
        cosine = torch.bmm(queries.vectors[query_of_post], posts.vectors.transpose(1, 2))
        exact = ids.unsqueeze(2) == posts.terms.ids.unsqueeze(1)  # [P, Lq, Ld]
        counts = histograms(cosine, exact, mask_of(posts.terms.ids), self.config.bins)
        weights = queries.terms.weights[query_of_post]
        return {
            "histograms": self.scaled(counts) * mask_of(ids).unsqueeze(2),
            "words": torch.stack([ids.float(), weights], dim=2),
        }

    def scaled(self, counts: Tensor) -> Tensor:
        """Histograms [P, Lq, bins] of counts, as the configuration scales them."""
        if self.config.histogram == "log_count":
            return torch.log1p(counts)
        if self.config.histogram == "normalized":
            return counts / counts.sum(dim=2, keepdim=True).clamp_min(1.0)
        return counts

    def represent(self, interactions: Interactions) -> Tensor:
        """Evidence of the query's words, added as the gate says: [P, 1]."""
        ids, weights = interactions["words"].unbind(dim=2)
        evidence = bounded(self.evidence(interactions["histograms"]), self.config.bound)
        if self.config.gate == "idf":
            logits = self.gate * weights
        else:
            logits = self.vectors(ids.long()) @ self.gate
        return torch.bmm(gates(logits, mask_of(ids)).unsqueeze(1), evidence).squeeze(2)

    def head(self, representations: Tensor) -> Tensor:
        """The evidence is the score: [P]."""
        return representations.squeeze(1)

    def interactions_are_fixed(self) -> bool:
        """Word vectors are not trained, and histograms could not pass a gradient on."""
        return True


def histograms(cosine: Tensor, exact: Tensor, post_mask: Tensor, bins: int) -> Tensor:
    """How many terms of the post are in each bin: [P, Lq, bins].

    [-1, 1] is divided into bins - 1 parts of equal width, of which only the last has its end.

    Args:
        cosine: [P, Lq, Ld].
        exact: [P, Lq, Ld], where both terms are the same: these are in the last bin instead.
        post_mask: [P, Ld], 1 where the post has a term.
        bins: in all.
    """
    places = ((cosine + 1.0) * (0.5 * (bins - 1))).long().clamp(0, bins - 2)
    places = places.masked_fill(exact, bins - 1)
    empty = torch.zeros(*places.shape[:2], bins, device=cosine.device)
    return empty.scatter_add(2, places, post_mask.unsqueeze(1).expand_as(cosine))


def gates(logits: Tensor, mask: Tensor) -> Tensor:
    """Softmax of ``logits`` [P, Lq] over the terms of ``mask`` [P, Lq]; 0 where there is none."""
    peak = logits.masked_fill(mask == 0, -torch.inf).amax(dim=1, keepdim=True)
    # Without terms the peak is -inf; with them it is one of the logits, and the sum at least 1.
    exponentials = torch.exp((logits - peak.clamp_min(-1e4)).clamp_max(0.0)) * mask
    return exponentials / exponentials.sum(dim=1, keepdim=True).clamp_min(1e-6)
