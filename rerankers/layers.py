"""What models share: word vectors that ship small, masked convolutions, similarity, pooling."""

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

TYPICAL_LENGTH = 6.0
"""About the Euclidean length of a 100-dimensional GloVe vector; unknown words get as much."""


def hashed_vectors(rows: int, size: int, seed: int) -> npt.NDArray[np.int8]:
    """Pseudo-random vectors that are the same on every machine and with every library version.

    Two different rows are nearly orthogonal, so an unknown term matches itself and nothing else.
    The generator is SplitMix64 (Steele et al. 2014) on the position of each number.

    Returns:
        [rows, size] numbers from -127 to 127.
    """
    state = np.arange(rows * size, dtype=np.uint64) + np.uint64(seed) * np.uint64(2**32)
    state *= np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    numbers = (state >> np.uint64(40)) % np.uint64(255)
    return (numbers.astype(np.int16) - 127).astype(np.int8).reshape(rows, size)


class HashedVectors(nn.Module):
    """A fixed pseudo-random vector for each identifier from 1 on; nothing of it is stored.

    Args:
        rows: number of identifiers, padding (0, a zero vector) not counted.
        size: E.
        length: expected Euclidean length of a vector.
    """

    table: Tensor

    def __init__(self, rows: int, size: int, seed: int, length: float = 1.0) -> None:
        super().__init__()
        self.size = size
        table = np.zeros((rows + 1, size), dtype=np.int8)
        table[1:] = hashed_vectors(rows, size, seed)
        self.register_buffer("table", torch.from_numpy(table), persistent=False)
        # Uniform whole numbers from -127 to 127 have the standard deviation 73.6.
        self.scale = length / (73.6 * size**0.5)

    def forward(self, ids: Tensor) -> Tensor:
        """Look up identifiers of any shape: [..., E]."""
        return self.table[ids].float() * self.scale


class FrozenVectors(nn.Module):
    """Word vectors that are not trained, kept in eight bits a number.

    Identifier 0 is padding (a zero vector), 1 … V are known words, and the ``buckets`` identifiers
    after them belong to unknown words, whose vectors are hashed.

    Args:
        vectors: [V, E] vectors of the known words.
        buckets: number of vectors for unknown words.
    """

    codes: Tensor
    scales: Tensor

    def __init__(self, vectors: npt.NDArray[np.float32], buckets: int) -> None:
        super().__init__()
        known, self.size = vectors.shape
        peak = np.abs(vectors).max(axis=1, keepdims=True, initial=1e-6)
        codes = np.zeros((known + 1, self.size), dtype=np.int8)
        codes[1:] = np.round(vectors / peak * 127)
        scales = np.zeros((known + 1, 1), dtype=np.float32)
        scales[1:] = peak / 127
        self.register_buffer("codes", torch.from_numpy(codes))
        self.register_buffer("scales", torch.from_numpy(scales))
        self.unknown = HashedVectors(buckets, self.size, seed=1, length=TYPICAL_LENGTH)

    def forward(self, ids: Tensor) -> Tensor:
        """Look up identifiers of any shape: [..., E]."""
        known = self.codes.shape[0]
        inside = ids.clamp(max=known - 1)
        vectors = self.codes[inside].float() * self.scales[inside]
        is_unknown = ids >= known
        if bool(is_unknown.any()):
            vectors[is_unknown] = self.unknown(ids[is_unknown] - known + 1)
        return vectors


class TrainedVectors(nn.Embedding):
    """Vectors that training changes: ``known`` first, then new ones drawn from U[low, high].

    Args:
        known: [V, E] initial vectors of the identifiers 1 … V.
        new: number of identifiers after them.
    """

    def __init__(
        self, known: npt.NDArray[np.float32], new: int, low: float = 0.0, high: float = 0.1
    ) -> None:
        super().__init__(1 + len(known) + new, known.shape[1], padding_idx=0)
        with torch.no_grad():
            self.weight.uniform_(low, high)
            self.weight[0] = 0.0
            self.weight[1 : 1 + len(known)] = torch.from_numpy(known)


class MaskedConvolution(nn.Module):
    """ReLU(convolution) over ``width`` terms from each term on; beyond a text's end are zeros.

    Equation of ``v_i`` in Rao et al. (2019), section 3.2. Positions without a term stay zero, so
    the result does not depend on how far a text is padded.
    """

    def __init__(self, size: int, filters: int, width: int) -> None:
        super().__init__()
        self.width = width
        self.weight = nn.Parameter(torch.empty(width * size, filters))
        self.bias = nn.Parameter(torch.zeros(filters))
        nn.init.xavier_uniform_(self.weight)

    def forward(self, terms: Tensor, mask: Tensor) -> Tensor:
        """Convolve ``terms`` [B, L, E] with ``mask`` [B, L, 1]: [B, L, F]."""
        length = terms.shape[1]
        padded = F.pad(terms, (0, 0, 0, self.width - 1))
        windows = torch.cat([padded[:, j : j + length] for j in range(self.width)], dim=2)
        hidden: Tensor = F.relu(F.linear(windows, self.weight.t(), self.bias))
        return hidden * mask


class ConvolutionTower(nn.Module):
    """Term vectors and the convolutions stacked on them (Rao et al. 2019, section 3.2).

    Args:
        vectors: module that turns identifiers into vectors of ``size`` numbers.
        size: E.
        filters: F of every convolution.
        width: terms under a filter.
        depth: number of convolutions.
    """

    def __init__(self, vectors: nn.Module, size: int, filters: int, width: int, depth: int) -> None:
        super().__init__()
        self.vectors = vectors
        sizes = [size] + [filters] * depth
        self.convolutions = nn.ModuleList(
            MaskedConvolution(inputs, filters, width) for inputs in sizes[:depth]
        )

    def forward(self, ids: Tensor) -> list[Tensor]:
        """Vectors of every depth for ids [B, L]: depth + 1 tensors [B, L, ·]."""
        mask = mask_of(ids).unsqueeze(2)
        levels = [self.vectors(ids)]
        for convolution in self.convolutions:
            levels.append(convolution(levels[-1], mask))
        return levels


def weighted_mean(features: Tensor, weights: Tensor) -> Tensor:
    """Mean of ``features`` [P, L, K] over L weighted by ``weights`` [P, L]: [P, K].

    A text without terms has the mean 0.
    """
    total = weights.sum(dim=1, keepdim=True).clamp_min(1e-6)
    return torch.bmm((weights / total).unsqueeze(1), features).squeeze(1)


def window_means(values: Tensor, mask: Tensor, width: int) -> Tensor:
    """Mean of ``values`` [B, L] over the ``width`` positions from each on that hold a term."""
    padding = (0, width - 1)
    sums = F.pad(values * mask, padding).unfold(1, width, 1).sum(dim=2)
    counts = F.pad(mask, padding).unfold(1, width, 1).sum(dim=2)
    return sums / counts.clamp_min(1.0)


def mask_of(ids: Tensor) -> Tensor:
    """1.0 where there is a term, 0.0 where there is padding; the shape of ``ids``."""
    return ids.ne(0).float()


def partial_softmax(logits: Tensor, mask: Tensor, axis: int, length: int) -> Tensor:
    """Softmax over ``length`` positions of which only those of ``mask`` are there.

    A position that is not there has the logit 0: it matches nothing, and takes its share.

    Args:
        logits: [P, Lq, Ld].
        mask: 1 for positions that are there, broadcast to ``logits``.
        axis: to normalise over.
        length: positions in all, at least as many as are there.

    Returns:
        [P, Lq, Ld], 0 where there is no position.
    """
    logits = logits.masked_fill(mask == 0, -torch.inf)
    peak = logits.amax(dim=axis, keepdim=True).clamp_min(0.0)
    exponentials = torch.exp(logits - peak)
    unused = (length - mask.sum(dim=axis, keepdim=True)) * torch.exp(-peak)
    return exponentials / (exponentials.sum(dim=axis, keepdim=True) + unused)


def max_over_posts(similarity: Tensor, post_mask: Tensor) -> Tensor:
    """Best match of each query position: [P, Lq] of ``similarity`` [P, Lq, Ld].

    A post without terms (a row of ``post_mask`` [P, Ld] that is 0) matches nothing: 0.
    """
    best = similarity.masked_fill(post_mask.unsqueeze(1) == 0, -1e4).amax(dim=2)
    return torch.where(post_mask.any(dim=1, keepdim=True), best, 0.0)


def mean_over_posts(similarity: Tensor, post_mask: Tensor, length: int | None = None) -> Tensor:
    """Mean match of each query position: [P, Lq].

    Args:
        similarity: [P, Lq, Ld].
        post_mask: [P, Ld], 1 where the post has a term.
        length: positions to divide by; None is the number of the post's terms.
    """
    total = torch.bmm(similarity, post_mask.unsqueeze(2)).squeeze(2)
    return total / (length or post_mask.sum(dim=1, keepdim=True).clamp_min(1.0))


def perceptron(inputs: int, hidden: int, outputs: int, dropout: float) -> nn.Sequential:
    """Two linear layers with a ReLU between them (Rao et al. 2019, section 3.4)."""
    return nn.Sequential(
        nn.Linear(inputs, hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, outputs)
    )
