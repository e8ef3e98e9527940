"""Layers of models: vectors of terms, common words of two texts, convolutions, perceptrons."""

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from tweetrerank.rerankers.networks.base import Terms
from tweetrerank.rerankers.text.vocabulary import Vocabulary
from tweetrerank.rerankers.text.words import STOP_WORDS

Vectors = npt.NDArray[np.float32]

TYPICAL_LENGTH = 6.0  # Typical Euclidean length of a 100-dimensional GloVe vector

VECTOR_KINDS = ("static", "positive")
"""Pre-trained and fixed; pre-trained and fine-tuned, unknown words positive at first, drawn from
U[0, 0.1] (Rao et al. 2019, section 4.3)."""

LEAST_LENGTH = 1e-6
"""Shorter vectors count as this long, so that a zero vector has the cosine 0 with every other."""


def mask_of_lengths(lengths: Tensor, positions: int) -> Tensor:
    """Whether a position is within its text, for texts of ``lengths`` [B]: [B, positions]."""
    return torch.arange(positions, device=lengths.device) < lengths.unsqueeze(1)


def unit_length(vectors: Tensor) -> Tensor:
    """Vectors [..., E] scaled to length 1; their dot products are cosines."""
    return F.normalize(vectors, dim=-1, eps=LEAST_LENGTH)


def hashed_vectors(rows: int, size: int, seed: int) -> npt.NDArray[np.int8]:
    """Pseudo-random vectors, identical on every machine and with every library version.

    Rows are nearly orthogonal, so an unknown term only matches itself. The generator is SplitMix64
    (Steele et al. 2014) on the position of each number. The result is [rows, size], numbers from
    -127 to 127.
    """
    codes = np.empty((rows, size), dtype=np.int8)
    # In parts, since intermediate values take eight times the memory.
    for start in range(0, rows, 2048):
        part = codes[start : start + 2048]
        state = np.arange(part.size, dtype=np.uint64) + (start * size + seed * 2**32)
        state *= 0x9E3779B97F4A7C15
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        numbers = (state >> np.uint64(40)) % np.uint64(255)
        part[:] = (numbers.astype(np.int16) - 127).reshape(part.shape)
    return codes


class HashedVectors(nn.Module):
    """A fixed pseudo-random vector for each identifier from 1 on, not stored in checkpoints. There
    are ``rows`` of them besides padding (0, a zero vector), of expected length ``length``."""

    def __init__(self, rows: int, size: int, seed: int, length: float = 1.0) -> None:
        super().__init__()
        self.size = size
        table = np.zeros((rows + 1, size), dtype=np.int8)
        table[1:] = hashed_vectors(rows, size, seed)
        self.table = nn.Buffer(torch.from_numpy(table), persistent=False)
        # The standard deviation of uniform integers from -127 to 127 is 73.6.
        self.scale = length / (73.6 * size**0.5)

    def forward(self, ids: Tensor) -> Tensor:
        """Look up identifiers of any shape: [..., E]."""
        return self.table[ids].float().mul_(self.scale)


class FrozenVectors(nn.Module):
    """Word vectors that are not trained, stored in eight bits per dimension. Identifier 0 is
    padding (a zero vector), 1 … V are known words, with ``vectors`` [V, E], and the ``buckets``
    identifiers after them belong to unknown words, whose vectors are hashed, of the expected
    Euclidean length ``unknown_length``."""

    def __init__(
        self, vectors: Vectors, buckets: int, unknown_length: float = TYPICAL_LENGTH
    ) -> None:
        super().__init__()
        known, self.size = vectors.shape
        peak = np.abs(vectors).max(axis=1, keepdims=True, initial=1e-6)
        codes = np.zeros((known + 1, self.size), dtype=np.int8)
        if vectors.any():  # Zeros are filled by a checkpoint.
            codes[1:] = np.round(vectors / peak * 127)
        scales = np.zeros((known + 1, 1), dtype=np.float32)
        scales[1:] = peak / 127
        self.codes = nn.Buffer(torch.from_numpy(codes))
        self.scales = nn.Buffer(torch.from_numpy(scales))
        self.unknown = HashedVectors(buckets, self.size, seed=1, length=unknown_length)

    def forward(self, ids: Tensor) -> Tensor:
        """Look up identifiers of any shape: [..., E]."""
        known = self.codes.shape[0]
        # Row 0 is a zero vector in both tables.
        inside = torch.where(ids < known, ids, 0)
        vectors = self.codes[inside].float().mul_(self.scales[inside])
        return vectors.add_(self.unknown((ids - known + 1).clamp_min(0)))


class TrainedVectors(nn.Embedding):
    """Trained vectors: of padding, 0 at first, of V ``known`` terms [V, E], and of ``new`` ones,
    drawn from U[low, high]; that of padding stays 0 unless ``padding`` is true."""

    def __init__(
        self,
        known: Vectors,
        new: int,
        padding: bool = False,
        low: float = 0.0,
        high: float = 0.1,
    ) -> None:
        super().__init__(
            1 + len(known) + new, known.shape[1], padding_idx=None if padding else 0
        )
        with torch.no_grad():
            self.weight.uniform_(low, high)
            self.weight[0] = 0.0
            self.weight[1 : 1 + len(known)] = torch.from_numpy(known)


def word_vectors(vocabulary: Vocabulary, kind: str, unknown: float) -> nn.Module:
    """Vectors of all words of a vocabulary, of one of the :data:`VECTOR_KINDS`. For ``static``,
    unknown words have hashed vectors of the same expected length as vectors that are drawn from
    U[-unknown, unknown]."""
    vectors, buckets = vocabulary.vectors, vocabulary.buckets
    if kind == "static":
        return FrozenVectors(vectors, buckets, unknown * (vectors.shape[1] / 3) ** 0.5)
    return TrainedVectors(vectors, buckets)


class StopWords(nn.Module):
    """Recognises stop words by their identifiers, if they have pre-trained vectors."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__()
        is_stop = np.array([False, *(word in STOP_WORDS for word in vocabulary.known)])
        # Derived from the vocabulary, so not stored in checkpoints.
        self.is_stop = nn.Buffer(torch.from_numpy(is_stop), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        """1.0 where ``ids``, of any shape, are terms but not stop words."""
        known = self.is_stop[ids.clamp(max=len(self.is_stop) - 1)] & (
            ids < len(self.is_stop)
        )
        return (ids.ne(0) & ~known).float()


class WordOverlap(nn.Module):
    """Counts of distinct common words (Yu et al. 2014, 4.2; Severyn & Moschitti 2015)."""

    size = 4

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__()
        self.content_words = StopWords(vocabulary)

    def forward(self, query: Terms, post_ids: Tensor, query_of_post: Tensor) -> Tensor:
        """[P, 4]: number of common words; sum of their IDF; and both without stop words. Words are
        given for Q queries and P posts, with the row of each post's query."""
        earlier = torch.tril(
            query.ids.unsqueeze(2) == query.ids.unsqueeze(1), diagonal=-1
        )
        # [Q, Lq], 1 for the first occurrence of a term
        distinct = (query.ids.ne(0) & ~earlier.any(dim=2)).float()
        weights = torch.stack([distinct, distinct * query.weights], dim=2)
        without_stop_words = weights * self.content_words(query.ids).unsqueeze(2)
        of_words = torch.cat([weights, without_stop_words], dim=2)[
            query_of_post
        ]  # [P, Lq, 4]
        same = query.ids[query_of_post].unsqueeze(2) == post_ids.unsqueeze(
            1
        )  # [P, Lq, Ld]
        return torch.bmm(same.any(dim=2).float().unsqueeze(1), of_words).squeeze(1)


class Convolution(nn.Module):
    """Weights of F filters over ``width`` terms of E = ``size`` dimensions."""

    def __init__(self, size: int, filters: int, width: int) -> None:
        super().__init__()
        self.width = width
        self.weight = nn.Parameter(torch.empty(width * size, filters))
        nn.init.xavier_uniform_(self.weight)


class MaskedConvolution(Convolution):
    """ReLU(convolution) over ``width`` terms from each term on, zeros after the text's end.
    Equation of ``v_i`` in Rao et al. (2019), section 3.2. Padding stays zero."""

    def __init__(self, size: int, filters: int, width: int) -> None:
        super().__init__(size, filters, width)
        self.bias = nn.Parameter(torch.zeros(filters))

    def forward(self, terms: Tensor, mask: Tensor) -> Tensor:
        """Convolve ``terms`` [B, L, E] with ``mask`` [B, L, 1]: [B, L, F]."""
        padded = F.pad(terms, (0, 0, 0, self.width - 1))
        hidden = self.of_packed(padded.flatten(0, 1)).unflatten(0, padded.shape[:2])
        return hidden[:, : terms.shape[1]] * mask

    def of_packed(self, terms: Tensor, dropout: float = 0.0) -> Tensor:
        """All windows of the rows [T, E] of one long text, 0 where they end beyond it: [T, F]. The
        products, one for each offset without a copy of windows, are those of the dtype of
        ``terms``. A share of the results is dropped."""
        weight = self.weight.to(terms.dtype).unflatten(0, (self.width, -1))
        count, total = len(terms) - self.width + 1, self.bias.to(terms.dtype)
        for shift in range(self.width):
            total = torch.addmm(total, terms[shift : shift + count], weight[shift])
        return F.pad(F.dropout(F.relu(total), dropout), (0, 0, 0, self.width - 1))


class ConvolutionTower(nn.Module):
    """Term vectors and the convolutions stacked on them (Rao et al. 2019, section 3.2). Texts of a
    batch are computed as one long text, with padding between them. No window begins before its
    position. So where padding is read like a term, that of identifier 0, all padded positions of a
    text are alike (but for dropout), and only the first is computed. ``dropout`` is the share of
    dimensions of all vectors of a text that are dropped in training, and of outputs of each
    convolution."""

    def __init__(
        self,
        vectors: nn.Module,
        size: int,
        filters: int,
        width: int,
        depth: int,
        reads_padding: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.vectors = vectors
        self.precision = (
            "fp32"  # Of the convolutions' products in training: or ``bf16``
        )
        self.reads_padding, self.dropout = reads_padding, dropout
        sizes = [size] + [filters] * depth
        self.convolutions = nn.ModuleList(
            MaskedConvolution(inputs, filters, width) for inputs in sizes[:depth]
        )

    def forward(self, ids: Tensor) -> list[Tensor]:
        """Vectors of every depth of texts [B, L], terms first: depth + 1 tensors [B, L, ·], 0 for
        padding. If padding is read they are [B, L + 1, ·], and the first position after a text is
        what every padded position is."""
        layers: list[MaskedConvolution] = list(self.convolutions)  # type: ignore[arg-type]
        dropout = self.dropout if self.training else 0.0
        # Every convolution leaves its width - 1 fewer positions that read no other text.
        margins = [layer.width - 1 for layer in layers]
        gap = 1 + sum(margins) if self.reads_padding else max([1, *margins])
        padded = F.pad(ids, (0, gap))
        terms = self.vectors(padded.flatten())
        if dropout:
            kept = F.dropout(terms.new_ones(len(ids), terms.shape[1]), dropout)
            terms = terms * kept.repeat_interleave(padded.shape[1], 0)
        levels = [terms]
        if self.training and self.precision == "bf16":
            terms = terms.bfloat16()
        mask = padded.flatten().ne(0).unsqueeze(1)
        for layer in layers:
            terms = layer.of_packed(terms, dropout)
            if not self.reads_padding:
                terms = terms * mask
            levels.append(terms)
        length = ids.shape[1] + self.reads_padding
        return [
            level.unflatten(0, padded.shape)[:, :length].float() for level in levels
        ]


class WideConvolution(Convolution):
    """Convolution over every window with a term: L + width - 1 positions for L terms. The text is
    surrounded by width - 1 zero vectors on either side (Kalchbrenner et al. 2014, section 3.1;
    Severyn & Moschitti 2015, section 3.1). Bias and non-linearity follow in the model."""

    def forward(self, terms: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Convolve ``terms`` [B, L, E], zeros after ``lengths`` [B]: [B, L + width - 1, F], zeros
        after the text, and the new lengths [B], 0 for a text without terms."""
        margin = self.width - 1
        wider = torch.where(lengths > 0, lengths + margin, 0)
        windows = windows_from(F.pad(terms, (0, 0, margin, 0)), self.width)
        # Windows after the text hold zeros only, so without a bias they are zero.
        return windows @ self.weight, wider


def windows_from(terms: Tensor, width: int) -> Tensor:
    """Windows of ``width`` terms from each one on, zeros after the end: [B, L, width · E]."""
    padded = F.pad(terms, (0, 0, 0, width - 1))
    return torch.cat([padded[:, j : j + terms.shape[1]] for j in range(width)], dim=2)


def square_convolution(before: int, after: int, width: int) -> nn.Conv2d:
    """Convolution of ``width`` × ``width``, initialised for a ReLU (He et al. 2015)."""
    layer = nn.Conv2d(before, after, width, padding="same")
    nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    layer.bias = nn.Parameter(torch.zeros(after))
    return layer


def xavier_linear(inputs: int, outputs: int) -> nn.Linear:
    """Linear layer with Xavier's uniform distribution and without an initial bias."""
    layer = nn.Linear(inputs, outputs)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def perceptron(inputs: int, hidden: int, outputs: int, dropout: float) -> nn.Sequential:
    """Two linear layers with a ReLU between them (Rao et al. 2019, section 3.4)."""
    layers = (
        nn.Linear(inputs, hidden),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(hidden, outputs),
    )
    return nn.Sequential(*layers)


def bounded(scores: Tensor) -> Tensor:
    """Scores of any shape, limited to (-10, 10) by tanh; about linear near 0."""
    return 10.0 * torch.tanh(scores / 10.0)
