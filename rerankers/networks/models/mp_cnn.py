"""MP-CNN: multi-perspective sentence similarity with convolutional networks.

This is the model SentLevel. Hua He, Kevin Gimpel and Jimmy Lin: *Multi-Perspective
Sentence Similarity Modeling with Convolutional Neural Networks*, EMNLP 2015. It is
trained with pairs of answers as in Jinfeng Rao, Hua He and Jimmy Lin:
*Noise-Contrastive Estimation for Answer Selection with Deep Neural Networks*, CIKM
2016.

Convolutions of several widths, over whole word vectors (holistic) and over single
dimensions, are pooled in several ways. Results of the same pooling are compared: by
width (vertically, all filters together) and by filter (horizontally, all widths
together). A hidden layer reads the cosines and distances of these comparisons.

Two named configurations:

``paper``
    Sizes of the paper: as many holistic filters as dimensions of a word vector, 20
    filters for each dimension, absolute differences element by element. This gives
    thousands of features. It is trained by plain SGD on all pairs, as in section 4 of
    the CIKM paper.

``compact`` (the default)
    For a few hundred relevant pairs: few filters for each dimension, and the sum of the
    absolute differences instead of all of them. This gives hundreds of features.

Deviations, and choices where the paper is silent:

* A span begins at each word, with zeros after the text's end. In the paper every span
  lies inside the text, so a text shorter than the span has none of that width. Padding
  is never pooled.
* Distances are not scaled to the range of cosines, because scaling lowered MRR by 0.09
  on TrecQA's development questions in a short trial with 50 filters.
* A text without words is pooled to zeros. Cosines divide by sqrt(x · x + 1e-8), so its
  cosines are 0.
* ``compact`` is trained with AdamW instead of SGD, at the same rate of 1e-3.
* The batch size is not given. It is one pair in ``paper``, as in the CIKM paper's code.
  With pairs of answers that code adds up the losses of a relevant answer's triplets.
  Here they are averaged, because with 8 times the rate, which would be the sum, the
  model did not learn. The row in the tables was trained with 4 times the rate, which is
  half of the sum.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from tweetrerank.rerankers.networks.base import WORDS, Inputs, Interactions, Reranker
from tweetrerank.rerankers.networks.layers.positions import pad_after, spans_from
from tweetrerank.rerankers.networks.layers.term_vectors import word_vectors
from tweetrerank.rerankers.networks.training.training_settings import (
    OF_ANSWERS,
    RAO_2016,
)
from tweetrerank.rerankers.settings import Checked, named, one_of
from tweetrerank.rerankers.text.vocabulary import Vocabulary

HOLISTIC_POOLINGS = 3  # Maximum, minimum and mean of block A
DIMENSION_POOLINGS = 2  # Maximum and minimum of block B


@dataclass(frozen=True)
class Config(Checked):
    """Hyperparameters; the defaults are the configuration ``compact``."""

    dimension_filters: int = 4
    """Number of filters for each dimension and width of block B (paper: 20)."""
    widths: int = 3
    """Spans have 1 to this many words (paper: 3). There is also an infinite width."""
    l1: str = one_of("sum", "elements")
    """Which absolute differences are features: ``elements`` (comU1 of the paper), or
    only their ``sum``."""
    hidden: int = 150  # Units of the hidden layer (paper: 150)
    dropout: float = 0.5
    """Share of hidden units that are dropped in training (CIKM 2016, section 4)."""

    def features(self, size: int) -> int:
        """Return the number of features of all comparisons.

        ``size`` is the number of dimensions of word vectors.
        """
        unit_2 = 2  # Cosine and distance
        unit_1 = unit_2 + (size if self.l1 == "elements" else 1)
        horizontal = HOLISTIC_POOLINGS * size * unit_2
        vertical = HOLISTIC_POOLINGS * (self.widths + 1) ** 2
        by_dimension = DIMENSION_POOLINGS * self.widths * self.dimension_filters
        return horizontal + (vertical + by_dimension) * unit_1


class PooledTexts(NamedTuple):
    """The pooled convolutions of a batch of texts."""

    holistic: Tensor
    """Block A, [B, 3 poolings, N widths, E]. The last width is infinity, which stands
    for the words themselves."""
    dimensions: Tensor  # Block B, [B, 2 poolings, N widths, filters, E]


class Model(Reranker):
    """The sentence model and the structured comparison; see the module's docstring."""

    configurations = named(
        compact=Config(),
        paper=Config(dimension_filters=20, l1="elements"),
    )
    training_settings = replace(OF_ANSWERS, epochs=15)
    configuration_settings = named(paper=RAO_2016)

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
        self.hidden = nn.Linear(config.features(size), config.hidden)
        self.dropout = nn.Dropout(config.dropout)
        self.score = nn.Linear(config.hidden, 1)

    def encode(self, inputs: Inputs, side: str) -> PooledTexts:
        """Return blocks A and B for B texts (section 3 of He et al. 2015)."""
        ids = inputs[WORDS].ids
        terms = self.vectors(ids)  # [B, L, E]
        inside = ids.ne(0).unsqueeze(2)  # [B, L, 1]
        maps = []
        for width, linear in enumerate(self.holistic, start=1):
            maps.append(torch.tanh(linear(spans_from(terms, width))))
        maps.append(terms)
        holistic = [_pool_holistic(values, inside) for values in maps]
        dimensions = [convolution(terms, inside) for convolution in self.by_dimension]
        return PooledTexts(
            torch.stack(holistic, dim=2),
            torch.stack(dimensions, dim=2),
        )

    def interact(
        self,
        queries: PooledTexts,
        posts: PooledTexts,
        query_of_post: Tensor,
    ) -> Interactions:
        """Return the structured comparison of each pair, [P, 1, K].

        Source: He et al. (2015), Algorithms 1 and 2.
        """
        query = queries.holistic[query_of_post]
        post = posts.holistic
        # Algorithm 1: for each pooling and filter, over the widths.
        horizontal = self._unit_2(query.transpose(2, 3), post.transpose(2, 3))
        # Algorithm 2: for each pooling and pair of widths, over the filters.
        vertical = self._unit_1(query.unsqueeze(3), post.unsqueeze(2))
        # For each pooling, width and filter of block B, over the dimensions.
        by_dimension = self._unit_1(queries.dimensions[query_of_post], posts.dimensions)
        comparisons = torch.cat(
            [
                horizontal.flatten(1),
                vertical.flatten(1),
                by_dimension.flatten(1),
            ],
            dim=1,
        )
        return {"comparisons": comparisons.unsqueeze(1)}

    def _unit_1(self, x: Tensor, y: Tensor) -> Tensor:
        """Return comU1 of vectors [..., K].

        It is the cosine, the L2 distance and the absolute differences.
        """
        differences = (x - y).abs()
        if self.config.l1 == "sum":
            differences = differences.sum(dim=-1, keepdim=True)
        return torch.cat([self._unit_2(x, y), differences], dim=-1)

    def _unit_2(self, x: Tensor, y: Tensor) -> Tensor:
        """Return comU2 of vectors [..., K]: cosine and L2 distance, [..., 2]."""
        x_length = torch.sqrt((x * x).sum(dim=-1) + 1e-8)
        y_length = torch.sqrt((y * y).sum(dim=-1) + 1e-8)
        lengths = x_length * y_length
        # The square root has no gradient at 0, so a small number is added.
        squares = (x - y).square().sum(dim=-1)
        distance = torch.sqrt(squares + 1e-12)
        cosine = (x * y).sum(dim=-1) / lengths
        return torch.stack([cosine, distance], dim=-1)

    def head(self, representations: Tensor) -> Tensor:
        """Return the scores [P] of the hidden layer and the output."""
        hidden = torch.tanh(self.hidden(representations))
        return super().head(self.dropout(hidden))


class _DimensionConvolution(nn.Module):
    """Block B for one width: filters for each dimension, tanh, and pooling.

    Pooling takes the maximum and the minimum.
    """

    def __init__(
        self,
        size: int,
        filters: int,
        width: int,
    ) -> None:
        super().__init__()
        self.width = width
        bound = width**-0.5
        weight = torch.empty(width, filters, size).uniform_(-bound, bound)
        bias = torch.empty(filters, size).uniform_(-bound, bound)
        self.weight = nn.Parameter(weight)
        self.bias = nn.Parameter(bias)

    def forward(self, terms: Tensor, inside: Tensor) -> Tensor:
        """Return the pooled filters [B, 2, filters, E] of words [B, L, E].

        ``inside`` [B, L, 1] is the mask of words.
        """
        length = terms.shape[1]
        padded = pad_after(terms, self.width - 1).unsqueeze(2)
        maps: Tensor = self.bias  # Then [B, L, filters, E]
        # This loop is several times faster than a grouped convolution.
        for offset in range(self.width):
            shifted = padded[:, offset : offset + length]
            maps = torch.addcmul(maps, shifted, self.weight[offset])
        pooled = torch.stack(_extremes(maps.flatten(2), inside), dim=1)
        # tanh is monotonic, so it can follow the pooling.
        return torch.tanh(pooled).view(
            len(terms),
            2,
            *self.bias.shape,
        )


def _extremes(maps: Tensor, inside: Tensor) -> list[Tensor]:
    """Return the maximum and minimum over a text's positions, [B, F] each.

    Both are 0 for an empty text.
    """
    # Padding repeats the first position, which does not change the maximum or minimum.
    maps = torch.where(inside, maps, maps[:, :1])
    has_words = inside.any(dim=1)
    maximum = maps.amax(dim=1)
    minimum = maps.amin(dim=1)
    return [
        torch.where(has_words, maximum, 0.0),
        torch.where(has_words, minimum, 0.0),
    ]


def _pool_holistic(maps: Tensor, inside: Tensor) -> Tensor:
    """Return the maximum, minimum and mean over a text's positions, [B, 3, F]."""
    total = (maps * inside).sum(dim=1)
    mean = total / inside.sum(dim=1).clamp_min(1)
    maximum, minimum = _extremes(maps, inside)
    return torch.stack([maximum, minimum, mean], dim=1)
