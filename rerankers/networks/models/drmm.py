"""DRMM: a histogram of similarities for each query word.

Jiafeng Guo, Yixing Fan, Qingyao Ai and W. Bruce Croft: *A Deep Relevance Matching Model
for Ad-hoc Retrieval*, CIKM 2016.

Every query word is compared with every word of the post by cosine. A histogram counts
its cosines in bins of equal width, with one bin for exact matches. A small network maps
the histogram to one value. A term gate, a softmax over the query's words, weights these
values. Histograms ignore order and position.

Two named configurations:

``idf`` (the default)
    Log-counts and a gate by IDF, which is the paper's best variant. It has 162 trained
    parameters.

``rao2019``
    The same gate in a baseline of Rao et al. (2019). Vectors of unknown words are drawn
    from U[0, 0.1], and IDF and training are those of section 4.3 there. Vectors are
    fixed here as well, because histograms have no gradient.

Deviations, and choices where the paper is silent:

* The logarithm is of the count plus 1, since empty bins have the count 0.
* Exact matches are equal word identifiers, not cosines of 1. A word without a
  pre-trained vector matches itself exactly. The cosines of its hashed vector with other
  words are about random.
* The paper's tanh limits scores to [-1, 1], which only suits its hinge loss of margin
  1. Ours has the same slope at 0 and the limits ±10.
* IDF is in [0, 1], so the initial weight of the gate is 5 instead of about 0. With the
  paper's ln N/n (``idf="classical"``) it is 5/16, which gives about the same gates.
* A query without words scores 0.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tweetrerank.rerankers.networks.base import (
    WORDS,
    Encoded,
    Inputs,
    Interactions,
    Reranker,
)
from tweetrerank.rerankers.networks.layers.perceptrons import bounded
from tweetrerank.rerankers.networks.layers.term_vectors import (
    VECTOR_KINDS,
    unit_length,
    word_vectors,
)
from tweetrerank.rerankers.networks.training.training_settings import HINGE
from tweetrerank.rerankers.settings import Checked, at_least, named, one_of
from tweetrerank.rerankers.text.vocabulary import Vocabulary

GATE_START = {"relative": 5.0, "classical": 5.0 / 16}
"""Initial weight of the gate for each kind of IDF. A word in 1 of 1,000,000 posts gets
50 times the weight of a word in every second post."""


@dataclass(frozen=True)
class Config(Checked):
    """Hyperparameters; the defaults are the configuration ``idf``."""

    bins: int = at_least(2, 30)
    """Number of bins of a histogram. The last one is for exact matches (paper: 30)."""
    idf: str = one_of(*GATE_START)  # Weights of words, in [0, 1] or ln N/n
    hidden: int = 5  # Units of the network's hidden layer (paper: 5)
    vectors: str = one_of(*VECTOR_KINDS)  # Never trained


class Model(Reranker):
    """The network of section 4; see the module's docstring."""

    configurations = named(
        idf=Config(),
        rao2019=Config(vectors="positive", idf="classical"),
    )
    training_settings = HINGE
    interactions_are_fixed = True  # Histograms have no gradient.

    def __init__(self, config: Config, vocabulary: Vocabulary) -> None:
        super().__init__(config)
        self.idf = config.idf
        self.vectors = word_vectors(vocabulary, config.vectors, unknown=0.25)
        self.vectors.requires_grad_(False)
        self.evidence = nn.Sequential(
            nn.Linear(config.bins, config.hidden),
            nn.Tanh(),
            nn.Linear(config.hidden, 1),
        )
        self.gate = nn.Parameter(torch.full((1,), GATE_START[config.idf]))
        self.score = nn.Identity()  # The sum of the words' values

    def encode(self, inputs: Inputs, side: str) -> Encoded:
        """Return the vectors [B, L, E] of the words of B texts.

        They have length 1, or 0 for padding.
        """
        words = inputs[WORDS]
        return Encoded(unit_length(self.vectors(words.ids)), words)

    def interact(
        self,
        queries: Encoded,
        posts: Encoded,
        query_of_post: Tensor,
    ) -> Interactions:
        """Return histograms [P, Lq, bins], and the words' mask and IDF [P, Lq, 2]."""
        query_vectors = queries.vectors[query_of_post]
        query_ids = queries.words.ids[query_of_post]
        query_mask = queries.words.mask[query_of_post]  # [P, Lq]
        cosine = torch.bmm(query_vectors, posts.vectors.transpose(1, 2))
        exact = query_ids.unsqueeze(2) == posts.words.ids.unsqueeze(1)  # [P, Lq, Ld]
        counts = histograms(
            cosine,
            exact,
            posts.words.mask,
            self.config.bins,
        )
        idf = queries.words.weights[query_of_post]
        return {
            "histograms": torch.log1p(counts) * query_mask.unsqueeze(2),
            "words": torch.stack([query_mask, idf], dim=2),
        }

    def represent(self, interactions: Interactions) -> Tensor:
        """Return the sum of the words' values, weighted by the gate, [P, 1]."""
        mask, idf = interactions["words"].unbind(dim=2)
        evidence = bounded(self.evidence(interactions["histograms"]))
        gates = (self.gate * idf).masked_fill(mask == 0, -1e4)  # [P, Lq]
        shares = gates.softmax(dim=1) * mask
        return torch.bmm(shares.unsqueeze(1), evidence).squeeze(2)


def histograms(
    cosine: Tensor,
    exact: Tensor,
    post_mask: Tensor,
    bins: int,
) -> Tensor:
    """Return the number of the post's terms in each bin, [P, Lq, bins].

    All bins except the last one are equal parts of [-1, 1]. Only the uppermost part
    includes its upper end. Equal terms, ``exact`` [P, Lq, Ld], go to the last bin.
    ``cosine`` is [P, Lq, Ld], and ``post_mask`` is [P, Ld].
    """
    per_unit = 0.5 * (bins - 1)  # Bins for each unit of the cosine
    places = ((cosine + 1.0) * per_unit).long()
    places = places.clamp(0, bins - 2).masked_fill(exact, bins - 1)
    empty = torch.zeros(
        *places.shape[:2],
        bins,
        device=cosine.device,
    )
    counted = post_mask.unsqueeze(1).expand_as(cosine)
    return empty.scatter_add(2, places, counted)
