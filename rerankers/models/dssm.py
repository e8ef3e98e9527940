"""DSSM: letter trigrams of the whole text, a multi-layer perceptron, and a cosine.

Po-Sen Huang, Xiaodong He, Jianfeng Gao, Li Deng, Alex Acero and Larry Heck: *Learning Deep
Structured Semantic Models for Web Search using Clickthrough Data*, CIKM 2013.

A text is the counts of the letter trigrams of its words. Layers with tanh turn them into a vector,
and the cosine of the vectors of query and post, times a smoothing factor γ, is the score: γ is that
of the softmax over one clicked and some other posts, by which the network is trained.

Two configurations have names:

``paper``
    300, 300 and 128 units and one row of weights for each of the 64,000 trigrams (the paper counts
    30,621 in its log, and gives each a row): 19 million numbers.

``compact`` (the default)
    A third of that width, about, and trigrams that share 16,384 rows. A step of training costs
    what the size of the first layer costs, and words that share one trigram's row by chance still
    differ in the others. Dropout, which the paper does without: on the topics of two years the
    network otherwise knows its training posts by heart within an epoch or two.

Where the paper leaves it open, or where we differ:

* Query and post share all weights; the paper's formulas name one set, Microsoft's later code has
  two networks. Shared, the cosine begins as one of common trigrams even for words that no
  training topic has, which two unrelated networks would have to learn word by word.
* γ = 10, as in that code; the paper only says that it is set on held-out data.
* Weights of the first layer start from U[-0.1, 0.1], as a text has tens of trigrams where the
  paper's ±sqrt(6 / (in + out)), kept for the other layers, would suppose thousands.
* A text without a word has the vector 0, which is similar to nothing.
* Clicks are relevance judgments: each relevant post stands against a topic's irrelevant ones.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from rerankers.models._letter_trigrams import SemanticModel, TrigramSums, unit_vectors
from rerankers.text.vocabulary import Vocabulary
from rerankers.text.words import TRIGRAM_COUNT


@dataclass(frozen=True)
class Config:
    """Hyperparameters; the defaults are the configuration ``compact``."""

    trigram_buckets: int = 16_384  # Rows of the first layer's weights, at most 64,000
    trigram_size: int = 96  # Units of the first layer (paper: 300)
    hidden: int = 96  # Units of the second layer (paper: 300)
    sentence_size: int = 64  # Units of the last layer, numbers in a text's vector (paper: 128)
    shared: bool = True  # Whether query and post share their weights
    smoothing: float = 10.0  # γ, by which the cosine is multiplied (see above)
    dropout: float = 0.4  # Share of the units of the first two layers dropped in training


class Model(SemanticModel):
    """The network of section 3; see the module's docstring."""

    config_type = Config
    configurations: ClassVar[Mapping[str, Config]] = {
        "compact": Config(),
        "paper": Config(
            trigram_buckets=TRIGRAM_COUNT, trigram_size=300, hidden=300, sentence_size=128,
            dropout=0.0,
        ),
    }  # fmt: skip

    def __init__(self, config: Config, vocabulary: Vocabulary) -> None:
        count = 1 if config.shared else 2
        super().__init__(config, *(DeepNetwork(config) for _ in range(count)))


class DeepNetwork(nn.Module):
    """Section 3.1: three layers with tanh over trigram counts."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.trigrams = TrigramSums(config.trigram_size, config.trigram_buckets)
        self.bias = nn.Parameter(torch.zeros(config.trigram_size))
        self.dropout = nn.Dropout(config.dropout)
        self.second = _layer(config.trigram_size, config.hidden)
        self.last = _layer(config.hidden, config.sentence_size)

    def forward(self, ids: Tensor) -> Tensor:
        """Vectors of length 1 of texts [B, L]: [B, K]; 0 for a text without trigrams."""
        first = self.dropout(torch.tanh(self.trigrams(ids) + self.bias))
        second = self.dropout(torch.tanh(self.second(first)))
        return unit_vectors(torch.tanh(self.last(second)), ids.ne(0).any(dim=1))


def _layer(inputs: int, outputs: int) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer
