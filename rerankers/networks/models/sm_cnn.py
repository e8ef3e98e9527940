"""SM-CNN: a convolutional network for pairs of short texts.

Aliaksei Severyn and Alessandro Moschitti: *Learning to Rank Short Text Pairs with
Convolutional Deep Neural Networks*, SIGIR 2015.

One wide convolution with max pooling encodes each text as a vector, with separate
filters for queries and posts. A similarity matrix compares the two vectors. A hidden
layer reads both vectors, their similarity, word overlap and the post's prior (from its
rank in a run), and gives the score.

Deviations, and choices where the paper is silent:

* Overlaps are plain counts and sums of IDF. (Normalised by text length, they are too
  small to be learned in a few epochs: AP on TrecQA's development set falls by .07.) The
  IDF is that of the checkpoint.
* The paper does not name the activation of the hidden layer. Here it is a ReLU, as in
  the convolution.
* The prior of the tweet experiments is always an input, and 0 where no run is reranked
  (answer selection). ``--set prior=false`` removes it, and ``--set overlap=false``
  removes the overlap.
* Digits are replaced by 0 only for the vectors. The overlap compares the original
  numbers.
"""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from tweetrerank.rerankers.networks.base import (
    MASKED_WORDS,
    QUERY,
    WORDS,
    Encoded,
    Inputs,
    Interactions,
    Reranker,
)
from tweetrerank.rerankers.networks.layers.common_words import WordOverlap
from tweetrerank.rerankers.networks.layers.convolutions import WideConvolution
from tweetrerank.rerankers.networks.layers.positions import mask_of_lengths
from tweetrerank.rerankers.networks.layers.term_vectors import (
    VECTOR_KINDS,
    word_vectors,
)
from tweetrerank.rerankers.networks.training.training_settings import OF_PAIRS
from tweetrerank.rerankers.settings import Checked, named, one_of
from tweetrerank.rerankers.text.vocabulary import Vocabulary


@dataclass(frozen=True)
class Config(Checked):
    """Hyperparameters; the defaults are those of section 4.1."""

    filters: int = 100  # F, feature maps of the convolution
    width: int = 5  # m, words under a filter
    vectors: str = one_of(*VECTOR_KINDS)
    overlap: bool = True  # Word overlap, plain and by IDF, with and without stop words
    prior: bool = True  # 1 / ln(rank + 1) in the run to rerank (section 5)
    hidden: int = 0  # Units of the hidden layer; 0 is the size of the join layer
    dropout: float = 0.5  # Share of hidden units dropped in training

    def join_size(self) -> int:
        """Return the number of values in the join layer."""
        size = 2 * self.filters + 1  # Both texts' vectors and their similarity
        if self.overlap:
            size += WordOverlap.size
        if self.prior:
            size += 1
        return size


class Model(Reranker):
    """The network of section 3; see the module's docstring."""

    configurations = named(
        static=Config(),
        text=Config(overlap=False, prior=False),
    )
    training_settings = replace(
        OF_PAIRS,
        optimizer="adadelta",
        learning_rate=1.0,
        steps=10,
        epochs=235,
        patience=47,
    )
    query_inputs = (WORDS, MASKED_WORDS)
    post_inputs = (WORDS, MASKED_WORDS)
    # Section 4.1: 1e-5 for convolutions, 1e-4 for all other weights
    decay_shares = named(sentence=0.1)

    def __init__(self, config: Config, vocabulary: Vocabulary) -> None:
        super().__init__(config)
        self.reads_prior = config.prior
        self.vectors = word_vectors(vocabulary, config.vectors, unknown=0.25)
        size = vocabulary.vectors.shape[1]
        self.query_sentence = _Sentence(size, config.filters, config.width)
        self.post_sentence = _Sentence(size, config.filters, config.width)
        self.similarity = nn.Parameter(torch.empty(config.filters, config.filters))
        nn.init.xavier_uniform_(self.similarity)
        if config.overlap:
            self.overlap = WordOverlap(vocabulary)
        join_size = config.join_size()
        hidden = config.hidden or join_size
        self.hidden = nn.Linear(join_size, hidden)
        self.dropout = nn.Dropout(config.dropout)
        self.score = nn.Linear(hidden, 1)

    def encode(self, inputs: Inputs, side: str) -> Encoded:
        """Encode B texts by the filters of their side."""
        words = inputs[MASKED_WORDS]
        sentence = self.query_sentence if side == QUERY else self.post_sentence
        vectors = self.vectors(words.ids)
        return Encoded(sentence(vectors, words.lengths), inputs[WORDS])

    def interact(
        self,
        queries: Encoded,
        posts: Encoded,
        query_of_post: Tensor,
    ) -> Interactions:
        """Return both vectors, their similarity, and the overlap.

        The similarity is x_qᵀ M x_d (equation 2).
        """
        query = queries.vectors[query_of_post]
        post = posts.vectors
        products = (query @ self.similarity) * post
        similarity = products.sum(dim=1, keepdim=True)
        features = [query, similarity, post]
        if self.config.overlap:
            overlap = self.overlap(queries.words, posts.words.ids, query_of_post)
            features.append(overlap)
        return {"join": torch.cat(features, dim=1).unsqueeze(1)}

    def head(self, representations: Tensor) -> Tensor:
        """Return the scores [P] of the hidden layer and the output."""
        hidden = F.relu(self.hidden(representations))
        return super().head(self.dropout(hidden))


class _Sentence(nn.Module):
    """A wide convolution, a ReLU and max pooling (section 3.1)."""

    def __init__(
        self,
        size: int,
        filters: int,
        width: int,
    ) -> None:
        super().__init__()
        self.convolution = WideConvolution(size, filters, width)
        self.bias = nn.Parameter(torch.zeros(filters))

    def forward(self, terms: Tensor, lengths: Tensor) -> Tensor:
        """Turn vectors of words [B, L, E] into one vector for each text, [B, F]."""
        maps, map_lengths = self.convolution(terms, lengths)
        inside = mask_of_lengths(map_lengths, maps.shape[1])
        # No value is below 0 after a ReLU, so zeros do not change the maximum.
        values = F.relu(maps + self.bias) * inside.unsqueeze(2)
        return values.amax(dim=1)
