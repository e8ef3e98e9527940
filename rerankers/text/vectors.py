"""Read, write, scale and reduce word vectors.

The forms are word2vec's binary files, GloVe's text files and GloVe's zip archive.
"""

import gzip
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tweetrerank.rerankers.reranker_error import RerankerError

Matrix = npt.NDArray[np.float32]


@dataclass(frozen=True)
class WordVectors:
    """V words, the most frequent first, and a vector of E numbers for each."""

    words: list[str]
    matrix: Matrix  # [V, E]


def read_vectors(path: Path) -> WordVectors:
    """Read a word2vec file (with ``.bin`` in its name) or a GloVe text file.

    Either may be compressed (``.gz``). Raises RerankerError if the file is missing or
    incomplete, has another form, or has a number that is not finite.
    """
    data = _read(path)
    parse = _parse_binary if ".bin" in path.suffixes else _parse_text
    try:
        vectors = parse(data)
        if not np.isfinite(vectors.matrix).all():
            raise ValueError("a number that is not finite")
    except (ValueError, IndexError) as error:
        raise RerankerError(
            f"{path}: found no word vectors ({error}), expected word2vec's binary form "
            "in a .bin file, or lines of a word and its numbers"
        ) from None
    return vectors


def _read(path: Path) -> bytes:
    try:
        data = path.read_bytes()
        if path.suffix == ".gz":
            data = gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise RerankerError(
            f"{path}: word vectors cannot be read ({error}); fetch them with "
            "`tweetrerank fetch embeddings`, or name a GloVe or word2vec file"
        ) from None
    return data


def _parse_binary(data: bytes) -> WordVectors:
    """Parse word2vec's binary form.

    It is a line ``V E``, then for each word its name, a space, and E little-endian
    floats. Raises ValueError or IndexError for another form.
    """
    position = data.index(b"\n") + 1
    count, size = map(int, data[:position].split())
    if size < 1 or not 0 <= count * size <= len(data) // 4:
        raise ValueError(
            f"{count} vectors of {size} numbers announced in {len(data)} bytes"
        )
    words = []
    matrix = np.empty((count, size), dtype=np.float32)
    for row in range(count):
        end = data.index(b" ", position)
        word = data[position:end].decode("utf-8", errors="replace")
        words.append(word.strip())
        matrix[row] = np.frombuffer(
            data,
            dtype="<f4",
            count=size,
            offset=end + 1,
        )
        position = end + 1 + 4 * size
    return WordVectors(words, matrix)


def _parse_text(data: bytes) -> WordVectors:
    """Parse lines that each have a word and E numbers.

    A header line with two numbers is skipped. Raises ValueError for another form.
    """
    # Only \n ends a line, because words of published files contain other separators.
    text = data.decode("utf-8", errors="replace")
    text = text.removesuffix("\n")
    lines = [line.rstrip(" \r") for line in text.split("\n")]
    if len(lines[0].split()) == 2:  # Header, as in word2vec's text form
        lines = lines[1:]
    if not lines or not text:
        raise ValueError("an empty file")
    size = len(lines[0].split(" ")) - 1
    if size < 1:
        raise ValueError(f"a first line without numbers, {lines[0][:40]!r}")
    words = []
    matrix = np.empty(
        (len(lines), size),
        dtype=np.float32,
    )
    for row, line in enumerate(lines):
        word, *numbers = line.rsplit(" ", size)
        if len(numbers) != size:
            raise ValueError(
                f"{len(numbers)} numbers for {word[:40]!r} in place of {size}"
            )
        words.append(word)
        matrix[row] = np.array(numbers, dtype=np.float32)
    return WordVectors(words, matrix)


def read_archive(
    path: Path,
    size: int,
    choose: Callable[[Sequence[str]], Sequence[bool]],
) -> WordVectors:
    """Read the chosen words and their vectors from GloVe's zip archive, in its order.

    Args:
        path: the archive.
        size: number of dimensions of the vectors.
        choose: function that gets all words, the most frequent first, and says for each
            word whether to read it.

    Raises RerankerError if the archive is damaged or has no vectors of this size.
    """
    name = f"glove.6B.{size}d.txt"
    try:
        with zipfile.ZipFile(path) as archive:
            with archive.open(name) as lines:
                words = [line.partition(b" ")[0].decode() for line in lines]
            is_chosen = choose(words)
            matrix = np.empty(
                (sum(is_chosen), size),
                dtype=np.float32,
            )
            with archive.open(name) as lines:
                for row, line in enumerate(compress(lines, is_chosen)):
                    numbers = line.decode().split(" ")[1:]
                    matrix[row] = np.array(numbers, dtype=np.float32)
    except (OSError, zipfile.BadZipFile, zlib.error, KeyError, ValueError) as error:
        raise RerankerError(
            f"{path}: found no {name} that can be read ({error}), expected GloVe's "
            "archive glove.6B.zip with vectors of 50, 100, 200 and 300 numbers"
        ) from None
    return WordVectors(list(compress(words, is_chosen)), matrix)


WORD2VEC_LENGTH = 2.9
"""Mean Euclidean length of the vectors of common words in word2vec's GoogleNews file
(300 dimensions)."""

OTHERS_LENGTH = 2.05
"""Mean length that other vectors get when they take the place of word2vec's.

It is shorter than word2vec's, because unrelated words have larger dot products in
GloVe. Of the lengths from 1.7 to 2.9, this one gave the best matches before any
training (AP by MP-HCNN's maximal word similarities, on three microblog years).
"""


def of_word2vec_length(matrix: Matrix) -> Matrix:
    """Scale vectors [V, E] to about the length that word2vec's have.

    The networks take a softmax over dot products, in which the length of the vectors
    acts as a temperature. All vectors are multiplied by one factor, so that the first
    20,000, those of the most frequent words, have a mean length of
    :data:`OTHERS_LENGTH`. If their mean length is already within a quarter of
    :data:`WORD2VEC_LENGTH`, as with word2vec itself, the vectors are returned as they
    are. GloVe's vectors of 100 dimensions have a mean length of 6.1.
    """
    if not len(matrix):
        return matrix
    lengths = np.linalg.norm(matrix[:20_000], axis=1)
    length = lengths.mean()
    if not length or 0.8 <= WORD2VEC_LENGTH / length <= 1.25:
        return matrix
    return (matrix * (OTHERS_LENGTH / length)).astype(np.float32)


def word2vec_bytes(vectors: WordVectors) -> bytes:
    """Return the vectors as the content of a file in word2vec's binary form."""
    count, size = vectors.matrix.shape
    content = [f"{count} {size}\n".encode()]
    rows = vectors.matrix.astype("<f4")
    for word, row in zip(vectors.words, rows, strict=True):
        content += [word.encode(), b" ", row.tobytes(), b"\n"]
    return b"".join(content)


def reduced(vectors: WordVectors, size: int) -> WordVectors:
    """Project vectors to ``size`` dimensions and keep dot products as well as possible.

    The projection is onto the first right singular vectors of the matrix (Eckart &
    Young 1936). Raises RerankerError if the vectors have fewer than ``size``
    dimensions.
    """
    matrix = vectors.matrix.astype(np.float64)
    if size > matrix.shape[1]:
        raise RerankerError(
            f"found vectors of {matrix.shape[1]} numbers, expected {size} or more"
        )
    _, axes = np.linalg.eigh(matrix.T @ matrix)  # By ascending singular value
    first_axes = axes[:, ::-1][:, :size]
    projected = matrix @ first_axes
    return WordVectors(vectors.words, projected.astype(np.float32))
