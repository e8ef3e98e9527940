"""DSSM: letter trigrams of the whole text, a multi-layer perceptron, and a cosine.

Po-Sen Huang, Xiaodong He, Jianfeng Gao, Li Deng, Alex Acero and Larry Heck: *Learning
Deep Structured Semantic Models for Web Search using Clickthrough Data*, CIKM 2013.

A text is represented by the counts of its letter trigrams, which are those of #word#
for each word ("word hashing"). Layers with tanh map it to a semantic vector. The score
is the cosine of query and post times a smoothing factor γ, which belongs to the softmax
over one clicked and several other posts in training.

Two named configurations:

``rao2019``
    The paper's 300, 300 and 128 units and one row of weights for each of the 64,000
    trigrams (of which 30,621 occur in its log): 19 million parameters. It is a baseline
    of Rao et al. (2019), and is trained as in section 4.3 there.

``compact`` (the default)
    About a third of these widths, and 16,384 rows shared by the trigrams. The cost of a
    training step grows with the size of the first layer. Words that share a row for one
    trigram differ in their other trigrams. Dropout, which the paper does not use,
    prevents overfitting within an epoch or two on the topics of two years.

Deviations, and choices where the paper is silent:

* Query and post share all weights. The paper's formulas have one set of weights, while
  Microsoft's later code has two networks. With shared weights, the initial cosine
  already measures common trigrams, even for words outside the training topics. Two
  networks would have to learn this word by word.
* γ = 10, as in that code. The paper tunes it on held-out data.
* Weights of the first layer are initialised from U[-0.1, 0.1], since a text has tens of
  trigrams. The paper's ±sqrt(6 / (in + out)), used for the other layers, would suit
  thousands.
* The vector of a text without words is 0, and so is its cosine.
* Relevance judgments replace clicks: each relevant post is trained with non-relevant
  ones of its topic.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from tweetrerank.rerankers.networks.base import TRIGRAMS, Inputs, Interactions, Reranker
from tweetrerank.rerankers.networks.layers.perceptrons import xavier_linear
from tweetrerank.rerankers.networks.layers.term_vectors import unit_length
from tweetrerank.rerankers.networks.layers.trigram_sums import TrigramSums
from tweetrerank.rerankers.networks.training.training_settings import Settings
from tweetrerank.rerankers.settings import Checked, at_least, named
from tweetrerank.rerankers.text.vocabulary import Vocabulary
from tweetrerank.rerankers.text.words import TRIGRAM_COUNT


@dataclass(frozen=True)
class Config(Checked):
    """Hyperparameters; the defaults are the configuration ``compact``."""

    trigram_buckets: int = at_least(1, 16_384, TRIGRAM_COUNT)
    """Number of rows of the first layer's weights."""
    trigram_size: int = 96  # Units of the first layer (paper: 300)
    hidden: int = 96  # Units of the second layer (paper: 300)
    sentence_size: int = 64  # Units of the last layer (paper: 128)
    smoothing: float = 10.0  # γ, factor of the cosine (see above)
    dropout: float = 0.4
    """Share of the units of the first two layers that are dropped in training."""


class SemanticModel(Reranker):
    """The cosine of two texts' semantic vectors, times γ (section 3.3).

    Queries and posts share the network. The hyperparameters contain γ as ``smoothing``.
    """

    network: ClassVar[type[nn.Module]]
    """Class of the network that maps trigram identifiers [B, L] to vectors [B, K]."""

    # The papers' loss: one clicked document and four others.
    training_settings = Settings(loss="listwise", learning_rate=1e-3, negatives=4)
    query_inputs = (TRIGRAMS,)
    post_inputs = (TRIGRAMS,)

    def __init__(self, config: Any, vocabulary: Vocabulary) -> None:
        super().__init__(config)
        self.tower = self.network(config)

    def encode(self, inputs: Inputs, side: str) -> Tensor:
        """Return semantic vectors [B, K] of length 1.

        They are 0 for a text without trigrams.
        """
        ids = inputs[TRIGRAMS].ids
        has_trigrams = ids.ne(0).any(dim=1, keepdim=True)
        return unit_length(self.tower(ids)) * has_trigrams

    def interact(
        self,
        queries: Tensor,
        posts: Tensor,
        query_of_post: Tensor,
    ) -> Interactions:
        """Return products [P, 1, K]. Their sum is the cosine."""
        products = queries[query_of_post] * posts
        return {"products": products.unsqueeze(1)}

    def head(self, representations: Tensor) -> Tensor:
        """Return γ times the cosine, [P]."""
        return self.config.smoothing * representations.sum(dim=1)


class DeepNetwork(nn.Module):
    """The three layers with tanh over trigram counts of section 3.1."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.trigrams = TrigramSums(config.trigram_size, config.trigram_buckets)
        self.bias = nn.Parameter(torch.zeros(config.trigram_size))
        self.dropout = nn.Dropout(config.dropout)
        self.second = xavier_linear(config.trigram_size, config.hidden)
        self.last = xavier_linear(config.hidden, config.sentence_size)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the vectors [B, K] of texts [B, L]."""
        first = self.dropout(torch.tanh(self.trigrams(ids) + self.bias))
        second = self.dropout(torch.tanh(self.second(first)))
        return torch.tanh(self.last(second))


class Model(SemanticModel):
    """The network of section 3; see the module's docstring."""

    network = DeepNetwork
    configurations = named(
        compact=Config(),
        rao2019=Config(
            trigram_buckets=TRIGRAM_COUNT,
            trigram_size=300,
            hidden=300,
            sentence_size=128,
            dropout=0.0,
        ),
    )
