"""DUET: a network for exact matches and one for meaning, trained as one.

Bhaskar Mitra, Fernando Diaz and Nick Craswell: *Learning to Match Using Local and Distributed
Representations of Text for Web Search*, WWW 2017.

The local network sees nothing but which words of the query are where in the post: how often, how
early, how close together. The distributed network makes a vector of the query and one of each
region of the post by convolutions and max pooling, and multiplies them number by number. Each
ends in fully connected layers, and their scores are added.

Two configurations have names:

``words`` (the default)
    The distributed network reads pre-trained word vectors that stay as they are: a hundred topics
    are too few to learn the meaning of words from.

``trigrams``
    It reads the character trigrams of each word, as the paper reads its 2,000 commonest n-graphs,
    n from 1 to 5. A word is the sum of its trigrams' vectors, which are trained.

What the paper leaves open, or where we differ:

* Posts are short: ``post_words`` words are read, not 1,000, and regions are ``region`` windows
  of words that follow one another, not 100 windows from every window on. Sizes of layers are
  about a tenth of the paper's 300.
* Both networks have weights of their own for each position of the query or region of the post, so
  texts are padded to fixed sizes, with zeros behind every layer: a place without a word has no
  part in a score, whatever the biases. Words beyond the sizes are not read.
* The paper's windows lie within a text. Ours hold at least one word of it (two zero vectors are
  added on either side), so texts of one word or two have windows as well.
* A trigram has a vector of ``trigram_size`` numbers, where the paper's filters read counts: the
  64,000 trigrams of our alphabet would need as many weights for each of a filter's words.
* Both networks' last layers are one, as their scores are added.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from rerankers.base import TRIGRAMS, WORDS, Inputs, Interactions, Reranker, require_choice
from rerankers.errors import RerankerError
from rerankers.layers.convolutions import WideConvolution
from rerankers.layers.embeddings import TrainedVectors, mask_of, word_vectors
from rerankers.text.vocabulary import Vocabulary
from rerankers.text.words import TRIGRAM_CLASSES, TRIGRAM_COUNT
from rerankers.training.settings import Settings


@dataclass(frozen=True)
class Config:
    """Hyperparameters; the defaults are the configuration ``words``."""

    terms: str = "words"
    """What the distributed network reads: vectors of ``words``, or of their ``trigrams``."""
    trigram_size: int = 32  # Numbers in a trigram's vector
    local_filters: int = 32  # Filters over the positions of the post (paper: 300)
    filters: int = 48  # F of the distributed network (paper: 300)
    width: int = 3  # Words under a filter of the distributed network (paper: 3)
    region: int = 8  # Windows of words that are pooled to one vector (paper: 100)
    hidden: int = 32  # Units of each network's fully connected layer (paper: 300)
    dropout: float = 0.2  # Share of hidden units dropped in training
    query_words: int = 16  # Words of a query that are read (paper: 10)
    post_words: int = 62  # Words of a post that are read (paper: 1,000)

    def __post_init__(self) -> None:
        require_choice("terms", self.terms, ("words", "trigrams"))
        sizes = ("width", "region", "query_words", "post_words")
        if wrong := [name for name in sizes if getattr(self, name) < 1]:
            raise RerankerError(
                f"setting {wrong[0]}: found {getattr(self, wrong[0])}, expected at least 1"
            )

    def regions(self) -> int:
        """R, regions of the longest post."""
        return -(-(self.post_words + self.width - 1) // self.region)


class RegionVectors(NamedTuple):
    """A batch of texts.

    Attributes:
        ids: [B, L] words, cut to what is read.
        meaning: what the distributed network makes of them: [Q, 1, F] of queries, [D, R, F] of
            posts, zeros where there is no region.
    """

    ids: Tensor
    meaning: Tensor


class Model(Reranker):
    """The networks of section 3; see the module's docstring."""

    config_type = Config
    configurations: ClassVar[Mapping[str, Config]] = {
        "words": Config(),
        "trigrams": Config(terms="trigrams"),
    }
    # The paper's loss: a relevant post among four others.
    training_settings = Settings(
        loss="listwise", learning_rate=1e-3, weight_decay=1e-2, batch_topics=12, positives=3,
        negatives=4, steps=50, epochs=12, patience=4,
    )  # fmt: skip
    query_inputs = (WORDS, TRIGRAMS)
    post_inputs = (WORDS, TRIGRAMS)

    def __init__(self, config: Config, vocabulary: Vocabulary) -> None:
        super().__init__()
        self.config = config
        if config.terms == "words":
            size = vocabulary.vectors.shape[1]
            self.vectors = word_vectors(vocabulary, "static", unknown=0.25)
        else:
            size = config.trigram_size
            self.vectors = TrainedVectors(
                np.zeros((0, size), dtype=np.float32), TRIGRAM_COUNT, -0.25, 0.25
            )
        self.places = nn.Linear(config.post_words, config.local_filters)
        self.local = nn.Linear(config.query_words * config.local_filters, config.hidden)
        self.query = TextNetwork(size, config)
        self.post = TextNetwork(size, config)
        self.distributed = nn.Linear(config.regions() * config.filters, config.hidden)
        self.dropout = nn.Dropout(config.dropout)
        self.score = nn.Linear(2 * config.hidden, 1)

    def encode_queries(self, inputs: Inputs) -> RegionVectors:
        """Q queries; the whole query is one region."""
        ids, words = self._words(inputs, self.config.query_words)
        windows = ids.shape[1] + self.config.width - 1
        return RegionVectors(ids, self.query(words, ids, windows))

    def encode_posts(self, inputs: Inputs) -> RegionVectors:
        """D posts."""
        ids, words = self._words(inputs, self.config.post_words)
        return RegionVectors(ids, self.post(words, ids, self.config.region))

    def _words(self, inputs: Inputs, most: int) -> tuple[Tensor, Tensor]:
        """Identifiers [B, L] and vectors [B, L, E] of the first ``most`` words of each text."""
        ids = inputs[WORDS].ids[:, :most]
        if self.config.terms == "words":
            return ids, self.vectors(ids)
        trigrams = inputs[TRIGRAMS].ids
        return ids, sum_by_word(self.vectors(trigrams), trigrams, ids.shape[1])

    def interact(
        self, queries: RegionVectors, posts: RegionVectors, query_of_post: Tensor
    ) -> Interactions:
        """Filters over exact matches [P, Lq, C], and products of meanings [P, R, F]."""
        query_ids = queries.ids[query_of_post]
        exact = query_ids.unsqueeze(2) == posts.ids.unsqueeze(1)  # [P, Lq, Ld]
        matches = exact.float() * mask_of(query_ids).unsqueeze(2)
        # Positions that the batch does not have are zeros, so their weights are left out.
        weights = self.places.weight[:, : matches.shape[2]]
        local = torch.tanh(F.linear(matches, weights, self.places.bias))
        return {
            "local": local * mask_of(query_ids).unsqueeze(2),
            "distributed": queries.meaning[query_of_post] * posts.meaning,
        }

    def represent(self, interactions: Interactions) -> Tensor:
        """The last hidden layers of both networks side by side: [P, 2 · hidden]."""
        config = self.config
        local = flattened(interactions["local"], config.query_words)
        distributed = flattened(interactions["distributed"], config.regions())
        hidden = torch.cat([self.local(local), self.distributed(distributed)], dim=1)
        representations: Tensor = self.dropout(torch.tanh(hidden))
        return representations

    def head(self, representations: Tensor) -> Tensor:
        """The sum of both networks' scores: [P]."""
        scores: Tensor = self.score(representations).squeeze(1)
        return scores


class TextNetwork(nn.Module):
    """Words to vectors of regions: convolution, max pooling, a fully connected layer.

    Args:
        size: E.
        config: the other sizes.
    """

    def __init__(self, size: int, config: Config) -> None:
        super().__init__()
        self.convolution = WideConvolution(size, config.filters, config.width)
        self.bias = nn.Parameter(torch.zeros(config.filters))
        self.output = nn.Linear(config.filters, config.filters)

    def forward(self, words: Tensor, ids: Tensor, region: int) -> Tensor:
        """Vectors [B, R, F] of the regions of ``region`` windows of texts [B, L, E].

        Args:
            words: vectors, zeros where ``ids`` are 0.
            ids: [B, L].
            region: windows of a region.
        """
        windows, lengths = self.convolution(words, ids.ne(0).sum(dim=1))
        inside = torch.arange(windows.shape[1], device=ids.device) < lengths.unsqueeze(1)
        # No tanh is below -1, so windows without a word never are the maximum of a region.
        values = torch.tanh(windows + self.bias).masked_fill(~inside.unsqueeze(2), -1.0)
        missing = -windows.shape[1] % region
        values = F.pad(values, (0, 0, 0, missing), value=-1.0)
        there = F.pad(inside, (0, missing)).view(len(ids), -1, region).any(dim=2)
        pooled = values.view(len(ids), -1, region, values.shape[2]).amax(dim=2)
        return torch.tanh(self.output(pooled)) * there.unsqueeze(2)


def flattened(places: Tensor, most: int) -> Tensor:
    """Places [P, L, K] of which there are at most ``most``, side by side: [P, most · K]."""
    return F.pad(places, (0, 0, 0, most - places.shape[1])).flatten(1)


def sum_by_word(vectors: Tensor, trigrams: Tensor, words: int) -> Tensor:
    """Sums over the trigrams of each of the first ``words`` words: [B, words, E].

    Args:
        vectors: [B, L, E] of the trigrams, zeros where there is none.
        trigrams: [B, L] identifiers; a word's first trigram, and no other, begins with ``#``.
        words: of each text that are kept.
    """
    first = trigrams.ne(0) & (trigrams <= TRIGRAM_CLASSES**2)
    word = (first.cumsum(dim=1) - 1).clamp(0, words).unsqueeze(2)
    # What belongs to no word that is kept goes to one more, which is dropped.
    sums = torch.zeros(len(vectors), words + 1, vectors.shape[2], device=vectors.device)
    return sums.scatter_add(1, word.expand_as(vectors), vectors)[:, :words]
