"""C-DSSM: letter trigrams of three-word spans, max pooling, and a cosine.

Yelong Shen, Xiaodong He, Jianfeng Gao, Li Deng and Grégoire Mesnil: *Learning Semantic
Representations Using Convolutional Neural Networks for Web Search*, WWW 2014. The full
paper is *A Latent Semantic Model with Convolutional-Pooling Structure for Information
Retrieval*, CIKM 2014.

DSSM (``dssm.py``) sums all trigrams of a text, while this network reads them word by
word. A matrix and tanh map each span of three words, given as their concatenated
trigram counts, to a vector. A second layer with tanh reads the maximum of each feature
over all spans. The score is γ times the cosine of query and post.

Two named configurations:

``rao2019``
    The paper's 300 features of a span, 128 dimensions of a text, and three rows of
    weights (one for each position in the span) for each of the 64,000 trigrams: 58
    million parameters. It is a baseline of Rao et al. (2019), and is trained as in
    section 4.3 there.

``compact`` (the default)
    A fifth of the features, and 16,384 rows shared by the trigrams of each position.

Deviations, and choices where the paper is silent:

* The input of trigrams has no borders between words. Borders are found by the first
  trigram of each word, which is the only one that begins with #. So a text has as many
  spans as words, each with its word in the middle, as in the paper.
* A text is preceded and followed by a word without trigrams, because the paper's <s>
  has no letters.
* As in the paper, the two layers have no biases.
* For shared weights, γ = 10, initial weights, texts without words, and clicks, see
  ``dssm.py``.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tweetrerank.rerankers.networks.layers.positions import pad_after, pad_before
from tweetrerank.rerankers.networks.layers.trigram_sums import TrigramSums
from tweetrerank.rerankers.networks.models.dssm import SemanticModel
from tweetrerank.rerankers.settings import Checked, at_least, named
from tweetrerank.rerankers.text.words import TRIGRAM_COUNT

WIDTH = 3  # Words in a span


@dataclass(frozen=True)
class Config(Checked):
    """Hyperparameters; the defaults are the configuration ``compact``."""

    trigram_buckets: int = at_least(1, 16_384, TRIGRAM_COUNT)
    """Number of rows of weights for each position in a span."""
    filters: int = 64  # F, features of a span (paper: 300)
    sentence_size: int = 64  # Dimensions of a text vector (paper: 128)
    smoothing: float = 10.0  # γ, factor of the cosine
    dropout: float = 0.0
    """Share of the pooled features that are dropped in training (paper: none)."""


class ConvolutionalNetwork(nn.Module):
    """The network of spans of words, max pooling, and a semantic layer.

    Source: CIKM 2014, sections 3.2 to 3.5.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        # Columns: F for the first position in the span, F for the second, …
        self.trigrams = TrigramSums(WIDTH * config.filters, config.trigram_buckets)
        self.dropout = nn.Dropout(config.dropout)
        self.semantic = nn.Linear(config.filters, config.sentence_size, bias=False)
        nn.init.xavier_uniform_(self.semantic.weight)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the vectors [B, K] of texts [B, L]."""
        sums, mask = self.trigrams.by_word(ids)  # [B, W, width · F], [B, W]
        first, middle, last = sums.chunk(WIDTH, dim=2)
        # The words of a span, with its own word in the middle: [B, W, F] each
        before = pad_before(first[:, :-1], 1)
        after = pad_after(last[:, 1:], 1)
        spans = torch.tanh(before + middle + after)
        # tanh is above -1, so padding never is the maximum of a text with words.
        is_padding = ~mask.unsqueeze(2)
        pooled = spans.masked_fill(is_padding, -1.0).amax(dim=1)
        return torch.tanh(self.semantic(self.dropout(pooled)))


class Model(SemanticModel):
    """The network of section 3 (CIKM 2014); see the module's docstring."""

    network = ConvolutionalNetwork
    configurations = named(
        compact=Config(),
        rao2019=Config(
            trigram_buckets=TRIGRAM_COUNT,
            filters=300,
            sentence_size=128,
        ),
    )
