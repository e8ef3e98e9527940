"""Spaces of word vectors, in which every word has a vector.

:func:`general` returns the space of the package ``wordllama``. It has the vectors of
32,000 pieces of words, which were distilled from the input embeddings of large language
models (Miller 2024, https://github.com/dleemiller/WordLlama). The vector of a word is
the sum of its pieces' vectors. :class:`AdaptedSpace` is fitted to the posts of one
collection; see :mod:`tweetrerank.pipeline.adapt`.

The vector of a text is the sum of its words' vectors.
"""

import hashlib
import importlib.util
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save

from tweetrerank.rerankers.reranker_error import RerankerError, warn
from tweetrerank.rerankers.text.lexicon import Lexicon
from tweetrerank.rerankers.text.ragged import Ragged, Rows, sums_of
from tweetrerank.rerankers.text.vectors import WordVectors, reduced
from tweetrerank.rerankers.text.words import words as cut_words

Codes = npt.NDArray[np.int8]
Vectors = npt.NDArray[np.float32]
Arrays = dict[str, npt.NDArray[Any]]

# Names of the two spaces
GENERAL = "general"
ADAPTED = "adapted"

SHORT = 1e-6  # Length up to which a vector counts as 0

LETTERS = 1.5
"""A word of several pieces counts as known if it has so many letters per piece or more.
In Arabic or Chinese, each piece is a single letter."""

BLOCK = 256
"""Number of words that are cut into pieces together. The tokenizer's time grows faster
than the number of words."""

FORMAT = "1"
_SHA256 = "sha256"


class Embeddings(NamedTuple):
    """The vectors of V words in a space.

    An unknown word is cut into pieces of hardly more than a letter. So the sum of their
    vectors describes its spelling rather than its meaning.
    """

    vectors: Vectors  # [V, E]
    lengths: Vectors  # [V] Euclidean lengths
    is_known: Vectors  # [V] 1 for a word that the space knows, else 0


Compute = Callable[[Sequence[str]], tuple[Vectors, Vectors]]
"""Function that returns (vectors [V, E], 1 for each known word, else 0 [V]) of V words.
There is at least one word."""


class WordSpace:
    """A space in which any word has a vector of E numbers; E is the ``size``."""

    def __init__(
        self,
        size: int,
        compute: Compute,
    ) -> None:
        self.size = size
        self._compute = compute

    def vectors(self, words: Sequence[str]) -> Vectors:
        """Return the vectors of V words [V, E]."""
        return self.take(words).vectors

    def take(self, words: Sequence[str]) -> Embeddings:
        """Return the vectors of V words, their lengths, and which words are known."""
        if words:
            vectors, is_known = self._compute(words)
        else:
            vectors = np.zeros((0, self.size), np.float32)
            is_known = np.zeros(0, np.float32)
        return Embeddings(vectors, _lengths(vectors), is_known)


@lru_cache(maxsize=1)
def general() -> WordSpace:
    """Return the space of the package ``wordllama``, which has 256 dimensions.

    Raises RerankerError if the package or its word vectors are missing or unreadable.
    """
    from tokenizers import Tokenizer

    # Only the package's files are used, because its code may download other vectors.
    package = importlib.util.find_spec("wordllama")
    if package is None or not package.submodule_search_locations:
        raise RerankerError(
            "found no package wordllama, which has the word vectors; install it"
        )
    folder = Path(package.submodule_search_locations[0])
    weights = folder / "weights" / "l2_supercat_256.safetensors"
    settings = folder / "tokenizers" / "l2_supercat_tokenizer_config.json"
    try:
        (vectors,) = load_file(weights).values()
        tokenizer = Tokenizer.from_file(str(settings))
    except Exception as error:  # The tokenizer's errors have no common class
        raise RerankerError(
            f"{folder}: found no word vectors that can be read ({error}); "
            "install wordllama again"
        ) from None
    return WordSpace(vectors.shape[1], _PieceSums(vectors, tokenizer))


class _PieceSums:
    """A function that computes word vectors as sums of the vectors of pieces."""

    def __init__(
        self,
        vectors: npt.NDArray[np.float16],
        tokenizer: Any,
    ) -> None:
        # In half precision. Only those in use are converted to single precision.
        self._vectors = vectors
        # The tokenizer's model alone takes two thirds of the time. It ignores special
        # tokens, which words do not need.
        self._model = tokenizer.model
        self._begins_word = np.zeros(len(vectors), np.bool_)
        for piece, number in tokenizer.get_vocab().items():
            if piece[0] == "▁":
                self._begins_word[number] = True

    def __call__(
        self,
        words: Sequence[str],
    ) -> tuple[Vectors, Vectors]:
        sums = []
        counts = []
        for start in range(0, len(words), BLOCK):
            block = words[start : start + BLOCK]
            block_sums, block_counts = self._sums(block)
            sums.append(block_sums)
            counts.append(block_counts)
        pieces = np.concatenate(counts)  # [V]
        letters = np.array([len(word) for word in words])
        is_known = (pieces <= 1) | (pieces * LETTERS <= letters)
        return np.concatenate(sums), is_known.astype(np.float32)

    def _sums(
        self,
        words: Sequence[str],
    ) -> tuple[Vectors, Rows]:
        """Return (vectors [V, E], number of pieces [V]) of V words."""
        clean = [_without_surrogates(word) for word in words]
        text = " ".join(clean)
        # Cutting all words as one text takes half the time of cutting them one by one.
        # Afterwards the words can be told apart if only their first pieces begin with a
        # space.
        is_separable = text.split() == clean and "▁" not in text
        if is_separable:
            ids = np.array(self._cut(text), np.int64)
            starts = np.flatnonzero(self._begins_word[ids])
        else:
            pieces_of_words = [self._cut(word) for word in clean]
            ids = np.fromiter(chain.from_iterable(pieces_of_words), np.int64)
            lengths = np.fromiter(map(len, pieces_of_words), np.int64)
            starts = np.cumsum(lengths) - lengths
        borders = np.append(starts, len(ids))
        pieces = Ragged(np.arange(len(ids)), borders)
        vectors = self._vectors[ids].astype(np.float32)
        return sums_of(pieces, vectors), pieces.lengths

    def _cut(self, text: str) -> list[int]:
        """Return the identifiers of the pieces of a text."""
        spaced = f"▁{text.replace(' ', '▁')}"
        return [piece.id for piece in self._model.tokenize(spaced)]


def _without_surrogates(word: str) -> str:
    """Return the word with ``?`` for lone surrogates, which UTF-8 cannot encode."""
    if word.isascii():
        return word
    return word.encode(errors="replace").decode()


def _lengths(vectors: Vectors) -> Vectors:
    return np.sqrt(np.einsum("ve,ve->v", vectors, vectors))


def unit(vectors: Vectors) -> Vectors:
    """Scale vectors [V, E] to length 1. Those no longer than ``SHORT`` become 0."""
    lengths = _lengths(vectors)
    reciprocals = 1 / np.maximum(lengths, SHORT)
    factors = np.where(lengths > SHORT, reciprocals, 0)
    return vectors * factors[:, None]


def text_vectors(texts: Sequence[str]) -> Vectors:
    """Return the vector of each text [T, E]: the sum of its words' general vectors.

    It is scaled to length 1, but it is 0 for a text without words.
    """
    lexicon = Lexicon.from_texts(texts)
    vectors = general().vectors(lexicon.words)
    return unit(sums_of(lexicon.texts, vectors))


def general_vectors(
    texts: Iterable[str],
    common: int = 20_000,
    size: int = 100,
) -> WordVectors:
    """Return general word vectors for a training that has no file of word vectors.

    The words are the ``common`` most frequent English words, followed by the words of
    the texts. Both parts begin with their most frequent words, as a file does. The
    vectors are reduced to ``size`` dimensions.
    """
    from wordfreq import top_n_list

    # Keeps the order. A word of wordfreq may be cut into several of our words.
    listed: dict[str, None] = {}
    for word in top_n_list("en", common):
        listed.update(dict.fromkeys(cut_words(word)))
    counts = Counter[str]()  # Number of texts with each word
    for text in texts:
        counts.update(set(cut_words(text)))
    listed.update((word, None) for word, _ in counts.most_common())
    words = list(listed)
    return reduced(WordVectors(words, general().vectors(words)), size)


class AdaptedSpace(WordSpace):
    """Word vectors fitted to the posts of a collection.

    The vector of a word w is ``general(w) · linear + codes[w] · scales[w]``. The first
    part maps its general vector by a matrix, and the second is what the posts add to
    it. A word that the posts do not have gets the first part only.

    Args:
        words: W words of the posts.
        codes: what the posts add to each word, rounded to eight bits [W, E].
        scales: factor of each word's codes [W].
        linear: matrix from general vectors to those of this space [256, E].
    """

    def __init__(
        self,
        words: Sequence[str],
        codes: Codes,
        scales: Vectors,
        linear: Vectors,
    ) -> None:
        self.words = list(words)
        self.codes = codes
        self.scales = scales
        self.linear = linear
        self._row_of = {word: row for row, word in enumerate(self.words)}
        super().__init__(linear.shape[1], self._vectors_of)

    def knows(self, word: str) -> bool:
        """Return whether the posts had this word."""
        return word in self._row_of

    def _vectors_of(
        self,
        words: Sequence[str],
    ) -> tuple[Vectors, Vectors]:
        embeddings = general().take(words)
        vectors = embeddings.vectors @ self.linear
        is_known = embeddings.is_known.copy()
        rows = np.array(
            [self._row_of.get(word, -1) for word in words],
            np.int64,
        )
        places = np.flatnonzero(rows >= 0)
        rows = rows[places]
        vectors[places] += self.codes[rows] * self.scales[rows, None]
        is_known[places] = 1
        return vectors, is_known

    def content(self, description: Mapping[str, str]) -> bytes:
        """Return the space as the content of a safetensors file.

        The file's header has ``description``, the format and a SHA-256.
        """
        spelled = "\n".join(self.words).encode(errors="replace")
        arrays: Arrays = {
            "words": np.frombuffer(spelled, dtype=np.uint8),
            "codes": self.codes,
            "scales": self.scales,
            "linear": self.linear,
        }
        header = {"format": FORMAT} | dict(description)
        digest = _digest(arrays, header)
        return save(arrays, header | {_SHA256: digest})

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a file that :meth:`content` made.

        Warns if the file is so old that it has no SHA-256. Raises RerankerError if the
        file is missing, damaged or of another format.
        """
        try:
            return cls._load(path)
        except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
            raise _unreadable(path, error) from None

    @classmethod
    def _load(cls, path: Path) -> Self:
        arrays = load_file(path)
        header = description_of(path)
        digest = header.pop(_SHA256, None)
        if digest is None:
            warn(
                f"{path}: made by an earlier version, and unchecked; "
                "run pipeline.adapt again"
            )
        elif digest != _digest(arrays, header):
            raise ValueError("another SHA-256 than at writing")
        spelled = arrays.pop("words").tobytes().decode()
        words = spelled.split("\n") if spelled else []
        space = cls(words, **arrays)
        shapes = (space.codes.shape, space.scales.shape, space.linear.shape)
        expected = (
            (len(words), space.size),
            (len(words),),
            (general().size, space.size),
        )
        if shapes != expected or header.get("format") != FORMAT:
            raise ValueError(
                f"arrays of {shapes}, expected {expected} and format {FORMAT}"
            )
        return space


def description_of(path: Path) -> dict[str, str]:
    """Read the description in the header of an adapted space's file.

    Raises RerankerError if the file cannot be read.
    """
    try:
        with safe_open(path, "numpy") as content:
            return dict(content.metadata() or {})
    except (OSError, SafetensorError) as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: Exception) -> RerankerError:
    return RerankerError(
        f"{path}: found no adapted word vectors ({error}); run pipeline.adapt again"
    )


def _digest(arrays: Arrays, description: Mapping[str, str]) -> str:
    """Return a SHA-256 of an adapted space's arrays and description."""
    header = json.dumps(description, sort_keys=True)
    digest = hashlib.sha256(header.encode())
    for name, array in sorted(arrays.items()):
        digest.update(name.encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def quantized(vectors: Vectors) -> tuple[Codes, Vectors]:
    """Round vectors [V, E] to eight bits; return (codes [V, E], scales [V]).

    A vector is about its codes multiplied by its scale.
    """
    largest = np.abs(vectors).max(axis=1, initial=0.0)
    scales = largest / 127
    divisors = np.where(scales > 0, scales, 1)
    codes = np.rint(vectors / divisors[:, None])
    return codes.astype(np.int8), scales.astype(np.float32)
