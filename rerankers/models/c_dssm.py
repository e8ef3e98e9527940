"""C-DSSM: letter trigrams of three words at a time, max pooling, and a cosine.

Yelong Shen, Xiaodong He, Jianfeng Gao, Li Deng and Grégoire Mesnil: *Learning Semantic
Representations Using Convolutional Neural Networks for Web Search*, WWW 2014; in full in *A Latent
Semantic Model with Convolutional-Pooling Structure for Information Retrieval*, CIKM 2014.

Where DSSM (see ``dssm.py``) adds up a text's trigrams, this network reads them word by word: each
window of three words, as the trigram counts of its words side by side, becomes a vector by a matrix
and tanh. The highest value of each feature over all windows goes through another layer with tanh,
and γ times the cosine of query and post is the score.

Two configurations have names:

``paper``
    300 features of a window and 128 numbers a text, and three rows of weights, one for each place
    of the window, for each of the 64,000 trigrams: 58 million numbers.

``compact`` (the default)
    A fifth of the features, and trigrams that share 16,384 rows for each place.

Where the paper leaves it open, or where we differ:

* The view of trigrams has no borders between words, but they can be told: a word's first trigram
  begins with #, and no other does, as # is never part of a word. So the windows are of words, as
  in the paper, and a text has as many windows as words, each with its word in the middle.
* Beyond either end of a text are words without trigrams (the paper's <s> has no letters).
* As in the paper, the two layers have no biases.
* Query and post share all weights, γ = 10, first weights, texts without words, and what stands for
  clicks: see ``dssm.py``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from rerankers.errors import RerankerError
from rerankers.models._letter_trigrams import SemanticModel, TrigramSums, unit_vectors
from rerankers.text.vocabulary import Vocabulary
from rerankers.text.words import TRIGRAM_COUNT


@dataclass(frozen=True)
class Config:
    """Hyperparameters; the defaults are the configuration ``compact``."""

    trigram_buckets: int = 16_384  # Rows of weights for each place of a window, at most 64,000
    filters: int = 64  # F, features of a window (paper: 300)
    width: int = 3  # Words in a window, an odd number (paper)
    sentence_size: int = 64  # Numbers in a text's vector (paper: 128)
    shared: bool = True  # Whether query and post share their weights
    smoothing: float = 10.0  # γ, by which the cosine is multiplied
    dropout: float = 0.0  # Share of the pooled features dropped in training (none)

    def __post_init__(self) -> None:
        if self.width < 1 or self.width % 2 == 0:
            raise RerankerError(f"setting width: found {self.width}, expected an odd number")


class Model(SemanticModel):
    """The network of section 3 (CIKM 2014); see the module's docstring."""

    config_type = Config
    configurations: ClassVar[Mapping[str, Config]] = {
        "compact": Config(),
        "paper": Config(trigram_buckets=TRIGRAM_COUNT, filters=300, sentence_size=128),
    }

    def __init__(self, config: Config, vocabulary: Vocabulary) -> None:
        count = 1 if config.shared else 2
        super().__init__(config, *(ConvolutionalNetwork(config) for _ in range(count)))


class ConvolutionalNetwork(nn.Module):
    """Windows of words, max pooling, and a layer on top (CIKM 2014, 3.2 to 3.5)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.width = config.width
        # Columns of a row: F for a word in the window's first place, F for the second, ...
        self.trigrams = TrigramSums(config.width * config.filters, config.trigram_buckets)
        self.dropout = nn.Dropout(config.dropout)
        self.semantic = nn.Linear(config.filters, config.sentence_size, bias=False)
        nn.init.xavier_uniform_(self.semantic.weight)

    def forward(self, ids: Tensor) -> Tensor:
        """Vectors of length 1 of texts [B, L]: [B, K]; 0 for a text without words."""
        sums, mask = self.trigrams.by_word(ids)  # [B, W, width · F]
        windows = torch.tanh(self.windows(sums))
        # tanh is above -1: no place without a word is ever the highest of a text with one.
        pooled = windows.masked_fill(~mask.unsqueeze(2), -1.0).amax(dim=1)
        vectors = torch.tanh(self.semantic(self.dropout(pooled)))
        return unit_vectors(vectors, mask.any(dim=1))

    def windows(self, sums: Tensor) -> Tensor:
        """What the words of each window add up to, its own word in the middle: [B, W, F]."""
        middle, words = self.width // 2, sums.shape[1]
        # A window's place 0 is taken by the word ``middle`` words before its own.
        padded = F.pad(sums, (0, 0, middle, middle))
        parts = padded.chunk(self.width, dim=2)
        total = parts[0][:, :words]
        for place in range(1, self.width):
            total = total + parts[place][:, place : place + words]
        return total
