"""PWIM: a deep convolutional network over pairwise word interactions (WordLevel).

Hua He and Jimmy Lin: *Pairwise Word Interaction Modeling with Deep Neural Networks for
Semantic Similarity Measurement*, NAACL 2016. It is trained with pairs of answers as in
Jinfeng Rao, Hua He and Jimmy Lin: *Noise-Contrastive Estimation for Answer Selection
with Deep Neural Networks*, CIKM 2016.

A bidirectional LSTM encodes both texts. Every pair of words is compared: the cosine,
distance and dot product of four kinds of states form a cube of 12 layers. A 13th layer
is the mask of words. The similarity focus selects the best-matching pairs, each word at
most once, and scales down all others. A convolutional network for images reads the
cube.

Two named configurations:

``paper``
    250 units in each direction and convolutions of 128, 164, 192, 192 and 128 channels.
    The fully connected layer has tanh and dropout, and training is by RMSprop, as in
    section 4 of the CIKM paper.

``compact`` (the default)
    About a fifth of both. It is trained in minutes on a CPU with a few thousand pairs.

Deviations, and choices where the paper is silent:

* Texts are cut to ``size`` words before encoding, not after it. The cube always has
  this size, since padding takes part in convolutions.
* The focus selects by the concatenated states of both directions: once by the highest
  cosine, once by the smallest distance. A pair selected by either keeps its values.
* If matches are about equal, the earlier one is selected (``PER_PLACE``). Otherwise
  rounding would decide in texts that repeat themselves.
* The last pooling is a maximum over all remaining positions (2 × 2 for a size of 32),
  so that any ``size`` is possible. The poolings before it round up.
* Each direction has its own LSTM, which both texts share. The authors' code has one
  LSTM for both directions. That code also negates distances, which only changes the
  sign of weights.
* The CIKM paper has tanh as "the non-linear activation function [...] in the
  fully-connected layer". So ``paper`` has tanh only in that layer, and its convolutions
  have ReLUs, as in the NAACL paper.
* The batch size is not given. It is one pair in ``paper``, as in the CIKM paper's code.
* Lengths are sqrt(x · x + 1e-8), so the cosine with a zero state is 0.
* One logit replaces the softmax over two classes.
"""

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from tweetrerank.rerankers.networks.base import WORDS, Inputs, Interactions, Reranker
from tweetrerank.rerankers.networks.layers.convolutions import square_convolution
from tweetrerank.rerankers.networks.layers.perceptrons import perceptron
from tweetrerank.rerankers.networks.layers.positions import pad_after
from tweetrerank.rerankers.networks.layers.term_vectors import word_vectors
from tweetrerank.rerankers.networks.training.training_settings import (
    OF_ANSWERS,
    RAO_2016,
)
from tweetrerank.rerankers.settings import Checked, above_zero, at_least, named, one_of
from tweetrerank.rerankers.text.vocabulary import Vocabulary

CHANNELS = (128, 164, 192, 192, 128)
"""Number of channels of the paper's convolutions, each of 3 × 3."""

LAYERS = 13
"""Number of layers of the cube: 3 comparisons of 4 kinds of states, and the mask of
words."""

PER_PLACE = 2e-6
"""How much a match is preferred to one that is a position later. Positions count row by
row. The preference is above the rounding error of a cosine and below relevant
differences."""


@dataclass(frozen=True)
class Config(Checked):
    """Hyperparameters; the defaults are the configuration ``compact``."""

    lstm_units: int = at_least(1, 50)
    """H, the number of units of the LSTM in each direction (paper: 250)."""
    channel_share: float = above_zero(0.1875)
    """Number of channels as a share of the paper's, rounded to multiples of 8."""
    size: int = at_least(1, 32)  # Words of each text, at most (authors' code: 32 to 64)
    focus_weight: float = 0.1  # Factor of pairs that are not selected (paper: 0.1)
    hidden: int = 128  # Units of the fully connected layer (paper: 128)
    activation: str = one_of("relu", "tanh")
    """Activation function of the hidden layer (CIKM 2016, section 4: tanh)."""
    dropout: float = 0.2  # Share of hidden units dropped in training (CIKM 2016: 0.5)

    def channels(self) -> list[int]:
        """Return the number of channels of each convolution."""
        if self.channel_share == 1.0:
            return list(CHANNELS)
        # Convolutions compute 8 channels at a time.
        eighths = [round(self.channel_share * count / 8) for count in CHANNELS]
        return [max(8, 8 * count) for count in eighths]


class LstmStates(NamedTuple):
    """States [B, L, H] of the LSTMs that start at the first and at the last word."""

    forward: Tensor
    backward: Tensor
    mask: Tensor  # [B, L]


class Model(Reranker):
    """The network of sections 3 to 7; see the module's docstring."""

    configurations = named(
        compact=Config(),
        paper=Config(lstm_units=250, channel_share=1.0, activation="tanh", dropout=0.5),
    )
    training_settings = replace(OF_ANSWERS, optimizer="rmsprop")
    configuration_settings = named(
        paper=replace(RAO_2016, optimizer="rmsprop", learning_rate=1e-4)
    )

    def __init__(self, config: Config, vocabulary: Vocabulary) -> None:
        super().__init__(config)
        self.vectors = word_vectors(vocabulary, "static", unknown=0.05)
        size = vocabulary.vectors.shape[1]
        self.from_beginning = nn.LSTM(size, config.lstm_units, batch_first=True)
        self.from_end = nn.LSTM(size, config.lstm_units, batch_first=True)
        channels = [LAYERS, *config.channels()]
        self.convolutions = nn.ModuleList(
            square_convolution(before, after, 3) for before, after in pairwise(channels)
        )
        self.score = perceptron(
            channels[-1],
            config.hidden,
            1,
            config.dropout,
        )
        if config.activation == "tanh":
            self.score[1] = nn.Tanh()

    def encode(self, inputs: Inputs, side: str) -> LstmStates:
        """Return the LSTM states of B texts (section 4)."""
        words = inputs[WORDS].first(self.config.size)
        vectors = self.vectors(words.ids)
        forward, _ = self.from_beginning(vectors)
        # Each text is reversed without its padding, so that padding comes last in both
        # directions.
        places = backwards(words.ids).unsqueeze(2)
        from_end, _ = self.from_end(vectors.gather(1, places.expand_as(vectors)))
        backward = from_end.gather(1, places.expand_as(from_end))
        mask = words.mask
        column = mask.unsqueeze(2)
        return LstmStates(forward * column, backward * column, mask)

    def interact(
        self,
        queries: LstmStates,
        posts: LstmStates,
        query_of_post: Tensor,
    ) -> Interactions:
        """Return the cube after the focus (sections 5 and 6), [P, Lq, size · 13]."""
        size = self.config.size
        query = LstmStates(
            queries.forward[query_of_post],
            queries.backward[query_of_post],
            queries.mask[query_of_post],
        )
        words = query.mask.unsqueeze(2) * posts.mask.unsqueeze(1)  # [P, Lq, Ld]
        mask = words.unsqueeze(3)
        cube = torch.stack(compare(query, posts), dim=3) * mask  # [P, Lq, Ld, 12]
        is_selected = focus(
            cube[..., 0],
            cube[..., 1],
            words > 0,
            size,
        )
        scales = torch.where(is_selected, 1.0, self.config.focus_weight)
        cube = torch.cat([cube * scales.unsqueeze(3), mask], dim=3)  # [P, Lq, Ld, 13]
        missing = size - cube.shape[2]
        return {"cube": F.pad(cube, (0, 0, 0, missing)).flatten(2)}

    def represent(self, interactions: Interactions) -> Tensor:
        """Apply the convolutions (section 7).

        The result is [P, channels of the last one].
        """
        cube = interactions["cube"]
        size = self.config.size
        padded = pad_after(cube, size - cube.shape[1])
        image = padded.view(
            -1,
            size,
            size,
            LAYERS,
        )
        image = image.permute(
            0,
            3,
            1,
            2,
        )  # [P, 13, size, size]
        for number, layer in enumerate(self.convolutions):
            if number > 0:
                image = F.max_pool2d(image, 2, ceil_mode=True)
            image = F.relu(layer(image))
        return image.amax(dim=(2, 3))


def backwards(ids: Tensor) -> Tensor:
    """Return the positions [B, L] that reverse texts [B, L].

    Padding stays at the end.
    """
    places = torch.arange(ids.shape[1], device=ids.device)
    places = places.expand_as(ids)
    from_end = ids.ne(0).sum(dim=1, keepdim=True) - 1 - places
    return torch.where(from_end >= 0, from_end, places)


class Comparison(NamedTuple):
    """Products of one kind of LSTM states of two texts."""

    dot: Tensor  # [P, Lq, Ld]
    squared_distance: Tensor  # [P, Lq, Ld]
    query_square: Tensor  # [P, Lq, 1] squared lengths
    post_square: Tensor  # [P, 1, Ld]

    def layers(self) -> list[Tensor]:
        """Return coU: cosine, distance and dot product, [P, Lq, Ld] each."""
        query_length = torch.sqrt(self.query_square + 1e-8)
        post_length = torch.sqrt(self.post_square + 1e-8)
        cosine = self.dot / (query_length * post_length)
        distance = torch.sqrt(self.squared_distance + 1e-8)
        return [cosine, distance, self.dot]


def compare(queries: LstmStates, posts: LstmStates) -> list[Tensor]:
    """Return the 12 layers [P, Lq, Ld] of the cube (section 5, coU).

    The comparisons are of the concatenated states, then of the forward, backward and
    added states. Products of concatenated states are sums over both directions.
    """
    added_query = queries.forward + queries.backward
    added_post = posts.forward + posts.backward
    forward = _comparison(queries.forward, posts.forward)
    backward = _comparison(queries.backward, posts.backward)
    added = _comparison(added_query, added_post)
    concatenated = Comparison(
        forward.dot + backward.dot,
        forward.squared_distance + backward.squared_distance,
        forward.query_square + backward.query_square,
        forward.post_square + backward.post_square,
    )
    layers = []
    for comparison in (concatenated, forward, backward, added):
        layers += comparison.layers()
    return layers


def _comparison(query: Tensor, post: Tensor) -> Comparison:
    """Return the products of states [P, Lq, H] and [P, Ld, H]."""
    # Distances are computed from differences. For equal states, x² + y² - 2xy would
    # only be a rounding error.
    distance = torch.cdist(query, post, compute_mode="donot_use_mm_for_euclid_dist")
    query_square = query.square().sum(dim=2)
    post_square = post.square().sum(dim=2)
    return Comparison(
        torch.bmm(query, post.mT),
        distance.square(),
        query_square.unsqueeze(2),
        post_square.unsqueeze(1),
    )


@torch.no_grad()
def focus(
    cosine: Tensor,
    distance: Tensor,
    words: Tensor,
    size: int,
) -> Tensor:
    """Return whether the similarity focus (section 6) selects each pair of words.

    The highest cosines and the smallest distances are selected where ``words`` is True.
    All three arguments and the result are [P, Lq, Ld]. Each row and column is selected
    at most once. A row of the cube has ``size`` positions.
    """
    pairs, rows, columns = words.shape
    places = torch.arange(rows * columns, device=words.device).view(rows, columns)
    penalty = PER_PLACE * (places // columns * size + places % columns)
    # By cosine and by distance: [2 · P, Lq, Ld]
    preference = torch.cat([cosine - penalty, -distance - penalty])
    preference = preference.masked_fill(~torch.cat([words, words]), -torch.inf)
    selected = torch.zeros_like(preference)
    everyone = torch.arange(2 * pairs, device=words.device)
    for _ in range(min(rows, columns)):
        best, place = preference.flatten(1).max(dim=1)
        row = place // columns
        column = place % columns
        selected[everyone, row, column] += best > -torch.inf
        preference[everyone, row] = -torch.inf
        preference[everyone, :, column] = -torch.inf
    return selected.view(2, *words.shape).any(dim=0)
