"""Vectors of terms that are hashed, stored in eight bits, or trained."""

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from tweetrerank.rerankers.text.vocabulary import Vocabulary

Vectors = npt.NDArray[np.float32]

TYPICAL_LENGTH = 6.0  # Typical Euclidean length of a 100-dimensional GloVe vector

VECTOR_KINDS = ("static", "positive")
"""How word vectors are made. ``static`` vectors are pre-trained and fixed. ``positive``
vectors are pre-trained and fine-tuned, and those of unknown words start in U[0, 0.1]
(Rao et al. 2019, section 4.3)."""

LEAST_LENGTH = 1e-6
"""A shorter vector counts as having this length, so that a zero vector has the cosine 0
with others."""

_ROWS_AT_ONCE = 2048  # Intermediate values take eight times the memory of the result


def unit_length(vectors: Tensor) -> Tensor:
    """Scale vectors [..., E] to length 1, so that their dot products are cosines."""
    return F.normalize(vectors, dim=-1, eps=LEAST_LENGTH)


def hashed_vectors(
    rows: int,
    size: int,
    seed: int,
) -> npt.NDArray[np.int8]:
    """Return pseudo-random vectors [rows, size], which are the same on every machine.

    The components are integers from -127 to 127. The rows are nearly orthogonal, so
    that an unknown term only matches itself. The generator is SplitMix64 (Steele et al.
    2014), applied to the position of each number. No version of a library can change
    its numbers.
    """
    codes = np.empty((rows, size), dtype=np.int8)
    for start in range(0, rows, _ROWS_AT_ONCE):
        block = codes[start : start + _ROWS_AT_ONCE]
        first = start * size + seed * 2**32
        state = np.arange(block.size, dtype=np.uint64) + first
        state *= 0x9E3779B97F4A7C15
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        numbers = (state >> np.uint64(40)) % np.uint64(255)
        block[:] = (numbers.astype(np.int16) - 127).reshape(block.shape)
    return codes


class HashedVectors(nn.Module):
    """A fixed pseudo-random vector for each identifier.

    Identifier 0 is padding, with a zero vector. Identifiers 1 to ``rows`` have vectors
    with the expected length ``length``. The vectors are computed again instead of being
    stored in checkpoints.
    """

    def __init__(
        self,
        rows: int,
        size: int,
        seed: int,
        length: float = 1.0,
    ) -> None:
        super().__init__()
        self.size = size
        table = np.zeros((rows + 1, size), dtype=np.int8)
        table[1:] = hashed_vectors(rows, size, seed)
        self.table = nn.Buffer(torch.from_numpy(table), persistent=False)
        # The standard deviation of uniform integers from -127 to 127 is 73.6.
        self.scale = length / (73.6 * size**0.5)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the vectors [..., E] of identifiers of any shape."""
        return self.table[ids].float().mul_(self.scale)


class FrozenVectors(nn.Module):
    """Word vectors that are not trained, stored in eight bits for each dimension.

    Identifier 0 is padding, with a zero vector. Identifiers 1 to V are the words with
    ``vectors`` [V, E]. The ``buckets`` identifiers after these belong to unknown words.
    Their vectors are hashed and have the expected Euclidean length ``unknown_length``.
    """

    def __init__(
        self,
        vectors: Vectors,
        buckets: int,
        unknown_length: float = TYPICAL_LENGTH,
    ) -> None:
        super().__init__()
        words, self.size = vectors.shape
        peak = np.abs(vectors).max(axis=1, keepdims=True, initial=1e-6)  # [V, 1]
        codes = np.zeros((words + 1, self.size), dtype=np.int8)
        if vectors.any():  # Zeros will be replaced by a checkpoint.
            codes[1:] = np.round(vectors / peak * 127)
        scales = np.zeros((words + 1, 1), dtype=np.float32)
        scales[1:] = peak / 127
        self.codes = nn.Buffer(torch.from_numpy(codes))
        self.scales = nn.Buffer(torch.from_numpy(scales))
        self.unknown = HashedVectors(
            buckets,
            self.size,
            seed=1,
            length=unknown_length,
        )

    def forward(self, ids: Tensor) -> Tensor:
        """Return the vectors [..., E] of identifiers of any shape."""
        stored = self.codes.shape[0]
        # Row 0 is a zero vector in both tables, so one of the two terms is always 0.
        rows = torch.where(ids < stored, ids, 0)
        vectors = self.codes[rows].float().mul_(self.scales[rows])
        return vectors.add_(self.unknown((ids - stored + 1).clamp_min(0)))


class TrainedVectors(nn.Embedding):
    """Trained vectors for padding, for V known terms, and for ``new`` terms.

    The vectors of known terms start as ``known`` [V, E], and those of new terms in
    U[low, high]. The vector of padding is 0, and stays 0 unless ``padding`` is true.
    """

    def __init__(
        self,
        known: Vectors,
        new: int,
        padding: bool = False,
        low: float = 0.0,
        high: float = 0.1,
    ) -> None:
        super().__init__(
            1 + len(known) + new,
            known.shape[1],
            padding_idx=None if padding else 0,
        )
        with torch.no_grad():
            self.weight.uniform_(low, high)
            self.weight[0] = 0.0
            self.weight[1 : 1 + len(known)] = torch.from_numpy(known)


def word_vectors(vocabulary: Vocabulary, kind: str, unknown: float) -> nn.Module:
    """Return vectors for all words of a vocabulary, of one of the :data:`VECTOR_KINDS`.

    With ``static``, the hashed vectors of unknown words are as long as vectors drawn
    from U[-unknown, unknown] are expected to be.
    """
    if kind == "positive":
        return TrainedVectors(vocabulary.vectors, vocabulary.buckets)
    size = vocabulary.vectors.shape[1]
    return FrozenVectors(
        vocabulary.vectors,
        vocabulary.buckets,
        unknown_length=unknown * (size / 3) ** 0.5,
    )
