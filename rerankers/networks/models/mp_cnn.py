"""MP-CNN: multi-perspective sentence similarity with convolutional networks (SentLevel).

Hua He, Kevin Gimpel and Jimmy Lin: *Multi-Perspective Sentence Similarity Modeling with
Convolutional Neural Networks*, EMNLP 2015; trained with pairs of answers as in Jinfeng Rao, Hua He
and Jimmy Lin: *Noise-Contrastive Estimation for Answer Selection with Deep Neural Networks*, CIKM
2016.

Convolutions of several widths, over whole word vectors (holistic) and over single dimensions, are
pooled in several ways. Results of the same pooling are compared: by width (vertically, all filters
together) and by filter (horizontally, all widths together). A hidden layer reads the cosines and
distances of these comparisons.

Two named configurations:

``paper``
    Sizes of the paper: as many holistic filters as dimensions of a word vector, 20 filters for each
    dimension, absolute differences element by element. This gives thousands of features. Trained by
    plain SGD on all pairs, as in section 4 of the CIKM paper.

``compact`` (the default)
    For a few hundred relevant pairs: few filters for each dimension, and the sum of the absolute
    differences instead of all of them. This gives hundreds of features.

Deviations, and choices where the paper is silent:

* A window begins at each word, with zeros after the text's end. The paper's windows lie inside the
  text, so texts shorter than a window have none. Padding is never pooled.
* Distances are not scaled to the range of cosines: this cost 0.09 of MRR on TrecQA's development
  questions in a short trial with 50 filters.
* A text without words is pooled to zeros. Cosines divide by sqrt(x · x + 1e-8), so its cosines are
  0.
* ``compact`` is trained with AdamW instead of SGD, at the same rate of 1e-3.
* The batch size is not given: one pair in ``paper``, as in the CIKM paper's code. With pairs of
  answers that code adds up the losses of a relevant answer's triplets; here they are averaged, as
  8 times the rate did not learn. The tables' row has 4 times the rate: half of the sum.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from tweetrerank.rerankers.networks.base import WORDS, Inputs, Interactions, Reranker
from tweetrerank.rerankers.networks.layers import windows_from, word_vectors
from tweetrerank.rerankers.networks.training.training_settings import (
    OF_ANSWERS,
    RAO_2016,
)
from tweetrerank.rerankers.settings import Checked, named, one_of
from tweetrerank.rerankers.text.vocabulary import Vocabulary


@dataclass(frozen=True)
class Config(Checked):
    """Hyperparameters; the defaults are the configuration ``compact``."""

    dimension_filters: int = (
        4  # Filters for each dimension and width of block B (paper: 20)
    )
    widths: int = 3  # Windows have 1 to this many words (paper: 3), and infinitely many
    l1: str = one_of("sum", "elements")
    """Absolute differences of two vectors: ``elements`` (comU1 of the paper) or their ``sum``."""
    hidden: int = 150  # Units of the hidden layer (paper: 150)
    dropout: float = (
        0.5  # Share of hidden units dropped in training (CIKM 2016, section 4)
    )


class PooledTexts(NamedTuple):
    """Pooled convolutions of a batch of texts."""

    holistic: Tensor
    """Block A, [B, 3 poolings, N widths, E]; the last width is infinity: the words themselves."""
    dimensions: Tensor  # Block B, [B, 2 poolings, N widths, filters, E]


class Model(Reranker):
    """Sentence model, structured comparison and hidden layer; see the module's docstring."""

    configurations = named(
        compact=Config(), paper=Config(dimension_filters=20, l1="elements")
    )
    training_settings = replace(OF_ANSWERS, epochs=15)
    own_settings = named(paper=RAO_2016)

    def __init__(self, config: Config, vocabulary: Vocabulary) -> None:
        super().__init__(config)
        size = vocabulary.vectors.shape[1]
        widths = range(1, config.widths + 1)
        self.vectors = word_vectors(vocabulary, "static", unknown=0.05)
        self.holistic = nn.ModuleList(nn.Linear(width * size, size) for width in widths)
        self.by_dimension = nn.ModuleList(
            _DimensionConvolution(size, config.dimension_filters, width)
            for width in widths
        )
        comparisons = (
            3 * (config.widths + 1) ** 2 + 2 * config.widths * config.dimension_filters
        )
        each = 2 + (size if config.l1 == "elements" else 1)
        self.hidden = nn.Linear(3 * size * 2 + comparisons * each, config.hidden)
        self.dropout = nn.Dropout(config.dropout)
        self.score = nn.Linear(config.hidden, 1)

    def encode(self, inputs: Inputs, side: str) -> PooledTexts:
        """Blocks A and B of B texts (section 3 of He et al. 2015)."""
        ids = inputs[WORDS].ids
        terms, inside = (
            self.vectors(ids),
            ids.ne(0).unsqueeze(2),
        )  # [B, L, E], [B, L, 1]
        widths = enumerate(self.holistic, start=1)
        maps = [
            torch.tanh(linear(windows_from(terms, width))) for width, linear in widths
        ]
        holistic = [_pool_holistic(values, inside) for values in (*maps, terms)]
        dimensions = [convolution(terms, inside) for convolution in self.by_dimension]
        return PooledTexts(torch.stack(holistic, dim=2), torch.stack(dimensions, dim=2))

    def interact(
        self, queries: PooledTexts, posts: PooledTexts, query_of_post: Tensor
    ) -> Interactions:
        """The structured comparison (Algorithms 1 and 2 of He et al. 2015)."""
        holistic = queries.holistic[query_of_post]
        parts = [
            # Algorithm 1: for each pooling and filter, over the widths.
            self._unit_2(holistic.transpose(2, 3), posts.holistic.transpose(2, 3)),
            # Algorithm 2: for each pooling and pair of widths, over the filters.
            self._unit_1(holistic.unsqueeze(3), posts.holistic.unsqueeze(2)),
            # For each pooling, width and filter of block B, over the dimensions.
            self._unit_1(queries.dimensions[query_of_post], posts.dimensions),
        ]
        return {
            "comparisons": torch.cat(
                [part.flatten(1) for part in parts], dim=1
            ).unsqueeze(1)
        }

    def _unit_1(self, x: Tensor, y: Tensor) -> Tensor:
        """comU1: cosine, L2 distance and absolute differences of vectors [..., K]."""
        differences = (x - y).abs()
        if self.config.l1 == "sum":
            differences = differences.sum(dim=-1, keepdim=True)
        return torch.cat([self._unit_2(x, y), differences], dim=-1)

    def _unit_2(self, x: Tensor, y: Tensor) -> Tensor:
        """comU2: cosine and L2 distance of vectors [..., K]: [..., 2]."""
        lengths = torch.sqrt((x * x).sum(dim=-1) + 1e-8) * torch.sqrt(
            (y * y).sum(dim=-1) + 1e-8
        )
        # The square root has no gradient at 0.
        distance = torch.sqrt((x - y).square().sum(dim=-1) + 1e-12)
        return torch.stack([(x * y).sum(dim=-1) / lengths, distance], dim=-1)

    def head(self, representations: Tensor) -> Tensor:
        """Hidden layer and output: [P]."""
        return super().head(self.dropout(torch.tanh(self.hidden(representations))))


class _DimensionConvolution(nn.Module):
    """Block B for one width: filters for each dimension, tanh, max and min pooling."""

    def __init__(self, size: int, filters: int, width: int) -> None:
        super().__init__()
        self.width = width
        bound = width**-0.5
        self.weight = nn.Parameter(
            torch.empty(width, filters, size).uniform_(-bound, bound)
        )
        self.bias = nn.Parameter(torch.empty(filters, size).uniform_(-bound, bound))

    def forward(self, terms: Tensor, inside: Tensor) -> Tensor:
        """Pooled filters [B, 2, filters, E] of words [B, L, E], masked by ``inside`` [B, L, 1]."""
        padded = F.pad(terms, (0, 0, 0, self.width - 1)).unsqueeze(2)
        maps: Tensor = self.bias  # Then [B, L, filters, E]
        # Several times faster than a grouped convolution.
        for j in range(self.width):
            maps = torch.addcmul(
                maps, padded[:, j : j + terms.shape[1]], self.weight[j]
            )
        pooled = torch.stack(_extremes(maps.flatten(2), inside), dim=1)
        # tanh is monotonic, so it can follow the pooling.
        return torch.tanh(pooled).view(len(terms), 2, *self.bias.shape)


def _extremes(maps: Tensor, inside: Tensor) -> list[Tensor]:
    """Maximum and minimum over a text's positions: [B, F] each, 0 for an empty text."""
    # Padding repeats the first position, which does not change the maximum or minimum.
    maps = torch.where(inside, maps, maps[:, :1])
    there = inside.any(dim=1)
    return [
        torch.where(there, extreme, 0.0)
        for extreme in (maps.amax(dim=1), maps.amin(dim=1))
    ]


def _pool_holistic(maps: Tensor, inside: Tensor) -> Tensor:
    """Maximum, minimum and mean over a text's positions: [B, 3, F]."""
    mean = (maps * inside).sum(dim=1) / inside.sum(dim=1).clamp_min(1)
    return torch.stack([*_extremes(maps, inside), mean], dim=1)
