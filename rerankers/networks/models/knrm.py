"""K-NRM and Conv-KNRM: kernels count matches at several levels of similarity.

Chenyan Xiong, Zhuyun Dai, Jamie Callan, Zhiyuan Liu and Russell Power: *End-to-End
Neural Ad-hoc Ranking with Kernel Pooling*, SIGIR 2017. Zhuyun Dai, Chenyan Xiong, Jamie
Callan and Zhiyuan Liu: *Convolutional Neural Networks for Soft-Matching N-Grams in
Ad-hoc Search*, WSDM 2018.

Every query word is compared with every word of the post by cosine. Eleven Gaussian
kernels, one for exact matches and ten for levels from 0.9 to -0.9, turn the cosines of
a query word into soft counts. A linear ranker reads the logarithms of the counts, which
are summed over the query's words.

Three named configurations:

``words`` (the default)
    K-NRM with fixed word vectors. It has 12 trained parameters. The paper trains its
    vectors on the log of a search engine, which is the main source of its gains. A
    hundred topics would overfit them.

``rao2019``
    K-NRM as a baseline of Rao et al. (2019). Vectors are fine-tuned, those of unknown
    words start in U[0, 0.1], and training is that of section 4.3 there.

``conv``
    Conv-KNRM. Convolutions, which query and post share, encode n-grams of 1, 2 and 3
    words. N-grams of all lengths are compared with each other.

Deviations, and choices where the papers are silent:

* Exact matches are cosines of 1, not equal identifiers, so that n-grams can also match
  exactly. Each unknown word has its own hashed vector, whose cosine with itself is 1.
* Counts are at least 1e-10 before the logarithm.
* Logarithms are multiplied by 0.1, so that the initial linear layer gives small scores.
* The papers' tanh limits scores to [-1, 1], which only suits their hinge loss of margin
  1. Ours has the same slope at 0 and the limits ±10.
* An n-gram begins at every word, with zeros after the text's end.
* Padding of the query adds nothing, and padding of the post is not counted.
"""

from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor, nn

from tweetrerank.rerankers.networks.base import (
    WORDS,
    Encoded,
    Inputs,
    Interactions,
    Reranker,
)
from tweetrerank.rerankers.networks.layers.convolutions import MaskedConvolution
from tweetrerank.rerankers.networks.layers.perceptrons import bounded
from tweetrerank.rerankers.networks.layers.term_vectors import (
    VECTOR_KINDS,
    unit_length,
    word_vectors,
)
from tweetrerank.rerankers.networks.training.training_settings import HINGE
from tweetrerank.rerankers.settings import Checked, at_least, named, one_of
from tweetrerank.rerankers.text.vocabulary import Vocabulary


class Kernel(NamedTuple):
    """A Gaussian kernel over similarities."""

    mean: float  # μ
    width: float  # σ


EXACT_MATCHES = Kernel(1.0, 1e-3)  # So narrow that it counts exact matches
SOFT_MATCHES = [Kernel(1.0 - (2 * level + 1) / 10, 0.1) for level in range(10)]
"""Their means divide [-1, 1] evenly: 0.9, 0.7, … -0.9."""
KERNELS = (EXACT_MATCHES, *SOFT_MATCHES)

LEAST_COUNT = 1e-10  # Lower limit of soft counts, which makes their logarithm finite
LOG_SCALE = 0.1  # Factor of the logarithms of soft counts


@dataclass(frozen=True)
class Config(Checked):
    """Hyperparameters; the defaults are the configuration ``words``."""

    longest_ngram: int = at_least(0, 0)
    """h_max, the number of words in the longest n-grams (Conv-KNRM: 3). 0 compares word
    vectors without convolutions (K-NRM)."""
    filters: int = 128  # F of each convolution (Conv-KNRM: 128)
    vectors: str = one_of(*VECTOR_KINDS)


class Model(Reranker):
    """The model of section 3 of both papers; see the module's docstring."""

    configurations = named(
        words=Config(),
        conv=Config(longest_ngram=3),
        rao2019=Config(vectors="positive"),
    )
    training_settings = HINGE

    def __init__(self, config: Config, vocabulary: Vocabulary) -> None:
        super().__init__(config)
        longest = config.longest_ngram
        self.interactions_are_fixed = config.vectors == "static" and not longest
        self.vectors = word_vectors(vocabulary, config.vectors, unknown=0.25)
        size = vocabulary.vectors.shape[1]
        self.convolutions = nn.ModuleList(
            MaskedConvolution(size, config.filters, width)
            for width in range(1, longest + 1)
        )
        comparisons = max(1, longest) ** 2
        self.score = nn.Linear(comparisons * len(KERNELS), 1)

    def encode(self, inputs: Inputs, side: str) -> Encoded:
        """Return the vectors of each length of n-grams, [B, L, F] each.

        They have length 1, or 0 for padding.
        """
        words = inputs[WORDS]
        vectors = self.vectors(words.ids)
        mask = words.mask.unsqueeze(2)
        levels = [vectors]
        if self.config.longest_ngram:
            levels = [layer(vectors, mask) for layer in self.convolutions]
        return Encoded([unit_length(level) for level in levels], words)

    def interact(
        self,
        queries: Encoded,
        posts: Encoded,
        query_of_post: Tensor,
    ) -> Interactions:
        """Return the logarithms of soft counts, [P, Lq, K].

        There are counts for each pair of n-gram lengths.
        """
        counts = []
        for query, post in product(queries.vectors, posts.vectors):
            cosine = torch.bmm(query[query_of_post], post.mT)  # [P, Lq, Ld]
            counts.append(soft_counts(cosine, posts.words.mask))
        logarithms = torch.log(torch.cat(counts, dim=2).clamp_min(LEAST_COUNT))
        query_mask = queries.words.mask[query_of_post].unsqueeze(2)
        return {"matches": LOG_SCALE * logarithms * query_mask}

    def represent(self, interactions: Interactions) -> Tensor:
        """Return φ, the sum over the words of the query, [P, K]."""
        return interactions["matches"].sum(dim=1)

    def head(self, representations: Tensor) -> Tensor:
        """Return the scores [P] of the linear ranker."""
        return bounded(self.score(representations).squeeze(1))


def soft_counts(similarity: Tensor, mask: Tensor) -> Tensor:
    """Return soft counts of matches at each level of similarity, [P, Lq, K].

    A count is a sum over the post's terms, for cosines [P, Lq, Ld] and a mask [P, Ld].
    A kernel of mean μ and width σ adds ``exp(-(s - μ)² / 2σ²)`` for a similarity s
    (Xiong et al. 2017, section 3.1).
    """
    column = mask.unsqueeze(2)
    sums = []
    # Kernels are applied one at a time, so that intermediate values fit the processor's
    # cache.
    for mean, width in KERNELS:
        squares = (similarity - mean).square()
        kernel = torch.exp(squares * (-0.5 / width**2))
        sums.append(torch.bmm(kernel, column))
    return torch.cat(sums, dim=2)
