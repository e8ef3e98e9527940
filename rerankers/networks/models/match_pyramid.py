"""MatchPyramid: image recognition on the matrix of word similarities.

Liang Pang, Yanyan Lan, Jiafeng Guo, Jun Xu, Shengxian Wan and Xueqi Cheng: *Text
Matching as Image Recognition*, AAAI 2016.

Every word of the query is compared with every word of the post. A convolution finds
patterns in this matrix, and dynamic pooling reduces matrices of all sizes to one size.
After a second convolution and pooling, a perceptron of two layers gives the score.

Two named configurations, with two of the paper's three similarities:

``cosine`` (the default)
    The cosine of word vectors. Rare words have short vectors, so their exact matches,
    the strongest signal, hardly change a dot product.

``rao2019``
    Dot products in a baseline of Rao et al. (2019). Vectors are fine-tuned, those of
    unknown words start in U[0, 0.1], and training is that of section 4.3 there.

The third similarity, which is 1 for equal words and 0 otherwise, is left out, because
it gives the same score to all posts without a query word.

Deviations, and choices where the paper is silent:

* Dynamic pooling divides each text by its own length L into n parts. Part i has the
  positions from ⌊i·L/n⌋ up to, but not including, ⌈(i + 1)·L/n⌉. Adjacent parts of a
  long text may share a word, and a text of fewer than n words has words in several
  parts. Padding is in no part, so scores do not depend on it. A pair without words is
  pooled to zeros.
* Convolutions pad a matrix with zeros and keep its size.
* Sizes are our reading of the paper's: 8 maps of 5 × 5, then 16 of 3 × 3. Pooled sizes
  suit queries of 3 to 10 words: 5 × 10 first, then the maximum of 2 × 2.
* Texts are cut to ``query_words`` and ``post_words`` to limit the computation.
* Word vectors are pre-trained and fixed, since a hundred topics would overfit them. Dot
  products are divided by 36, the typical squared length of a vector.
* Dropout of the hidden layer is our addition. A softmax over two classes is one logit.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from tweetrerank.rerankers.networks.base import (
    QUERY,
    WORDS,
    Encoded,
    Inputs,
    Interactions,
    Reranker,
)
from tweetrerank.rerankers.networks.layers.convolutions import square_convolution
from tweetrerank.rerankers.networks.layers.perceptrons import perceptron
from tweetrerank.rerankers.networks.layers.term_vectors import (
    TYPICAL_LENGTH,
    VECTOR_KINDS,
    unit_length,
    word_vectors,
)
from tweetrerank.rerankers.networks.training.training_settings import Settings
from tweetrerank.rerankers.settings import Checked, at_least, named, one_of
from tweetrerank.rerankers.text.vocabulary import Vocabulary


@dataclass(frozen=True)
class Config(Checked):
    """Hyperparameters; the defaults are the configuration ``cosine``."""

    similarity: str = one_of("cosine", "dot")
    vectors: str = one_of(*VECTOR_KINDS)
    filters: int = 8  # F, feature maps of the first convolution
    width: int = 5  # Words on each side of its square
    deep_filters: int = 16  # Feature maps of the second convolution
    deep_width: int = 3  # Positions on each side of its square
    pooled_rows: int = at_least(2, 5)  # Parts of a query after dynamic pooling
    pooled_columns: int = at_least(2, 10)  # Parts of a post after dynamic pooling
    query_words: int = 32  # Words of a query, at most
    post_words: int = 80  # Words of a post, at most
    hidden: int = 64  # Units of the first fully connected layer
    dropout: float = 0.2  # Share of hidden units dropped in training


class Model(Reranker):
    """The paper's network; see the module's docstring."""

    configurations = named(
        cosine=Config(),
        rao2019=Config(similarity="dot", vectors="positive"),
    )
    training_settings = Settings(loss="listwise", learning_rate=1e-3)

    def __init__(self, config: Config, vocabulary: Vocabulary) -> None:
        super().__init__(config)
        # The vectors of unknown words are as long as others, so their dot products are
        # as large.
        unknown = TYPICAL_LENGTH * (3 / vocabulary.vectors.shape[1]) ** 0.5
        self.vectors = word_vectors(vocabulary, config.vectors, unknown)
        self.first = square_convolution(1, config.filters, config.width)
        self.second = square_convolution(
            config.filters,
            config.deep_filters,
            config.deep_width,
        )
        places = (config.pooled_rows // 2) * (config.pooled_columns // 2)
        self.score = perceptron(
            config.deep_filters * places,
            config.hidden,
            1,
            config.dropout,
        )

    def encode(self, inputs: Inputs, side: str) -> Encoded:
        """Return the vectors [B, L, E] of words.

        They have length 1 for cosines, and are 0 for padding.
        """
        config = self.config
        most = config.query_words if side == QUERY else config.post_words
        words = inputs[WORDS].first(most)
        vectors = self.vectors(words.ids)
        if config.similarity == "cosine":
            return Encoded(unit_length(vectors), words)
        return Encoded(vectors / TYPICAL_LENGTH, words)

    def interact(
        self,
        queries: Encoded,
        posts: Encoded,
        query_of_post: Tensor,
    ) -> Interactions:
        """Return the first feature maps after pooling.

        They are [P, pooled_rows, F · pooled_columns].
        """
        config = self.config
        query = queries.vectors[query_of_post]
        query_lengths = queries.words.lengths[query_of_post]
        matrix = torch.bmm(query, posts.vectors.transpose(1, 2))  # [P, Lq, Ld]
        maps = F.relu(self.first(matrix.unsqueeze(1)))  # [P, F, Lq, Ld]
        # [P, F, rows, Ld], then [P, F, columns, rows]
        rows = dynamic_pooling(maps, query_lengths, config.pooled_rows)
        pooled = dynamic_pooling(rows.mT, posts.words.lengths, config.pooled_columns)
        return {"patterns": pooled.permute(0, 3, 1, 2).flatten(2)}

    def represent(self, interactions: Interactions) -> Tensor:
        """Return the results of the second convolution and pooling, [P, K]."""
        config = self.config
        patterns = interactions["patterns"][:, : config.pooled_rows]
        # [P, F, rows, columns]
        maps = patterns.unflatten(2, (config.filters, config.pooled_columns))
        maps = maps.transpose(1, 2)
        maps = F.relu(self.second(maps))
        return F.max_pool2d(maps, 2).flatten(1)


def dynamic_pooling(maps: Tensor, lengths: Tensor, parts: int) -> Tensor:
    """Return the maximum of each of n = ``parts`` of a text.

    ``maps`` [P, F, L, M] become [P, F, n, M]. A text is divided by its own length
    without padding, ``lengths`` [P]. An empty text is pooled to 0.
    """
    numbers = torch.arange(parts, device=maps.device)
    starts = numbers * lengths.unsqueeze(1) // parts  # [P, n]
    ends = -(-(numbers + 1) * lengths.unsqueeze(1) // parts)
    # S, the greatest number of positions in a part
    longest = -(-maps.shape[2] // parts) + 1
    places = starts.unsqueeze(2) + torch.arange(longest, device=maps.device)
    # Shorter parts repeat their last position, which does not change the maximum.
    last = (ends - 1).clamp_min(0).unsqueeze(2)
    places = torch.minimum(places, last).flatten(1)  # [P, n · S]
    pairs = torch.arange(len(maps), device=maps.device).unsqueeze(1)
    values = maps.transpose(1, 2)[pairs, places]  # [P, n · S, F, M]
    values = values.unflatten(1, (parts, longest))
    pooled = values.amax(dim=2).transpose(1, 2)  # [P, F, n, M]
    return pooled * lengths.gt(0).view(-1, 1, 1, 1)
