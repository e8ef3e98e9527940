"""DUET: a network for exact matches and one for meaning, trained together.

Bhaskar Mitra, Fernando Diaz and Nick Craswell: *Learning to Match Using Local and
Distributed Representations of Text for Web Search*, WWW 2017.

The local network reads only the positions of query words in the post. The distributed
network encodes the query, and each region of the post, by convolution and max pooling,
and multiplies the vectors element by element. Each network ends in fully connected
layers, and their scores are added.

Two named configurations:

``words`` (the default)
    The distributed network reads fixed pre-trained word vectors: a hundred topics are
    too few to learn the meaning of words.

``rao2019``
    It reads the character trigrams of each word, as the paper reads its 2,000 most
    frequent n-graphs (n from 1 to 5). A word is the sum of its trigrams' trained
    vectors. It is a baseline of Rao et al. (2019), and is trained as in section 4.3
    there.

Deviations, and choices where the paper is silent:

* Posts are short: ``post_words`` words instead of 1,000, and disjoint regions of
  ``region`` consecutive spans instead of overlapping ones of 100. Layer sizes are about
  a tenth of 300.
* Both networks have separate weights for each query position or region, so texts are
  padded to fixed sizes, with zeros after every layer: padding never changes a score.
  Words beyond these sizes are ignored.
* In the paper every span lies inside the text. Here a span needs only one word in the
  text, because two zero vectors are added on either side. So texts of one or two words
  also have spans.
* A trigram has a vector of ``trigram_size`` dimensions, where the paper's filters read
  counts: with 64,000 trigrams, each word of a filter would need as many weights.
* The last layers of both networks are one layer, since their scores are added.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from tweetrerank.rerankers.networks.base import (
    QUERY,
    TRIGRAMS,
    WORDS,
    Encoded,
    Inputs,
    Interactions,
    Reranker,
)
from tweetrerank.rerankers.networks.layers.convolutions import WideConvolution
from tweetrerank.rerankers.networks.layers.positions import mask_of_lengths, pad_after
from tweetrerank.rerankers.networks.layers.term_vectors import word_vectors
from tweetrerank.rerankers.networks.layers.trigram_sums import TrigramSums
from tweetrerank.rerankers.networks.training.training_settings import Settings
from tweetrerank.rerankers.settings import Checked, at_least, named, one_of
from tweetrerank.rerankers.text.vocabulary import Vocabulary
from tweetrerank.rerankers.text.words import TRIGRAM_COUNT


@dataclass(frozen=True)
class Config(Checked):
    """Hyperparameters; the defaults are the configuration ``words``."""

    terms: str = one_of("words", "trigrams")
    """Input of the distributed network: vectors of ``words``, or of ``trigrams``."""
    trigram_size: int = 32  # Dimensions of a trigram vector
    local_filters: int = 32  # C, filters over the positions of the post (paper: 300)
    filters: int = 48  # F of the distributed network (paper: 300)
    width: int = at_least(1, 3)
    """Number of words under a filter of the distributed network (paper: 3)."""
    region: int = at_least(1, 8)  # Spans that are pooled to one vector (paper: 100)
    hidden: int = 32  # Units of each network's fully connected layer (paper: 300)
    dropout: float = 0.2  # Share of hidden units dropped in training
    query_words: int = at_least(1, 16)  # Words of a query, at most (paper: 10)
    post_words: int = at_least(1, 62)  # Words of a post, at most (paper: 1,000)

    def regions(self) -> int:
        """Return R, the number of regions of the longest post."""
        spans = self.post_words + self.width - 1
        return -(-spans // self.region)


class Model(Reranker):
    """The networks of section 3; see the module's docstring."""

    configurations = named(
        words=Config(),
        rao2019=Config(terms="trigrams"),
    )
    # The paper's loss: one relevant post and four others.
    training_settings = Settings(
        loss="listwise",
        learning_rate=1e-3,
        weight_decay=1e-2,
        negatives=4,
    )
    query_inputs = (WORDS, TRIGRAMS)
    post_inputs = (WORDS, TRIGRAMS)

    def __init__(self, config: Config, vocabulary: Vocabulary) -> None:
        super().__init__(config)
        if config.terms == "words":
            size = vocabulary.vectors.shape[1]
            self.vectors: Any = word_vectors(vocabulary, "static", unknown=0.25)
        else:
            size = config.trigram_size
            self.vectors = TrigramSums(size, TRIGRAM_COUNT, bound=0.25)
        self.places = nn.Linear(config.post_words, config.local_filters)
        self.local = nn.Linear(config.query_words * config.local_filters, config.hidden)
        self.query = TextNetwork(size, config)
        self.post = TextNetwork(size, config)
        self.distributed = nn.Linear(config.regions() * config.filters, config.hidden)
        self.dropout = nn.Dropout(config.dropout)
        self.score = nn.Linear(2 * config.hidden, 1)

    def encode(self, inputs: Inputs, side: str) -> Encoded:
        """Return the vectors of regions.

        They are [B, R, F] for B posts, and 0 for padding. A query is one region, so
        they are [B, 1, F] for B queries.
        """
        config = self.config
        if side == QUERY:
            words = inputs[WORDS].first(config.query_words)
            vectors = self._word_vectors(inputs, words.ids)
            region = words.ids.shape[1] + config.width - 1
            return Encoded(self.query(vectors, words.lengths, region), words)
        words = inputs[WORDS].first(config.post_words)
        vectors = self._word_vectors(inputs, words.ids)
        return Encoded(self.post(vectors, words.lengths, config.region), words)

    def _word_vectors(self, inputs: Inputs, ids: Tensor) -> Tensor:
        """Return the vectors [B, L, E] of the words ``ids`` [B, L]."""
        if self.config.terms == "words":
            return self.vectors(ids)
        sums, _ = self.vectors.by_word(inputs[TRIGRAMS].ids)
        return sums[:, : ids.shape[1]]

    def interact(
        self,
        queries: Encoded,
        posts: Encoded,
        query_of_post: Tensor,
    ) -> Interactions:
        """Return filters over exact matches, and products of regions.

        They are [P, Lq, C] and [P, R, F].
        """
        query_ids = queries.words.ids[query_of_post]
        exact = query_ids.unsqueeze(2) == posts.words.ids.unsqueeze(1)  # [P, Lq, Ld]
        mask = queries.words.mask[query_of_post].unsqueeze(2)  # [P, Lq, 1]
        matches = exact.float() * mask
        # Positions beyond the longest post of the batch are zero and need no weights.
        weights = self.places.weight[:, : matches.shape[2]]
        local = torch.tanh(F.linear(matches, weights, self.places.bias))
        products = queries.vectors[query_of_post] * posts.vectors
        return {"local": local * mask, "distributed": products}

    def represent(self, interactions: Interactions) -> Tensor:
        """Return the last hidden layers of both networks, [P, 2 · hidden]."""
        local = flattened(interactions["local"], self.config.query_words)
        distributed = flattened(interactions["distributed"], self.config.regions())
        hidden = [self.local(local), self.distributed(distributed)]
        return self.dropout(torch.tanh(torch.cat(hidden, dim=1)))


class TextNetwork(nn.Module):
    """Vectors of regions by convolution, max pooling and a fully connected layer."""

    def __init__(self, size: int, config: Config) -> None:
        super().__init__()
        self.convolution = WideConvolution(size, config.filters, config.width)
        self.bias = nn.Parameter(torch.zeros(config.filters))
        self.output = nn.Linear(config.filters, config.filters)

    def forward(
        self,
        words: Tensor,
        lengths: Tensor,
        region: int,
    ) -> Tensor:
        """Return the vectors [B, R, F] of the regions of texts [B, L, E].

        A region has ``region`` spans.
        """
        count = len(words)
        spans, span_lengths = self.convolution(words, lengths)
        inside = mask_of_lengths(span_lengths, spans.shape[1])
        # tanh is above -1, so a span without a word is never the maximum of a region.
        values = torch.tanh(spans + self.bias)
        values = values.masked_fill(~inside.unsqueeze(2), -1.0)
        missing = -spans.shape[1] % region
        values = F.pad(
            values,
            (0, 0, 0, missing),
            value=-1.0,
        )
        inside = F.pad(inside, (0, missing))
        has_words = inside.view(count, -1, region).any(dim=2)  # [B, R]
        regions = values.view(
            count,
            -1,
            region,
            values.shape[2],
        )
        pooled = regions.amax(dim=2)  # [B, R, F]
        return torch.tanh(self.output(pooled)) * has_words.unsqueeze(2)


def flattened(places: Tensor, most: int) -> Tensor:
    """Pad ``places`` [P, L, K] to ``most`` positions, and flatten them.

    The result is [P, most · K].
    """
    missing = most - places.shape[1]
    return pad_after(places, missing).flatten(1)
