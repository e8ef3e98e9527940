"""Spaces of word vectors in which every word has a vector.

:func:`general` knows the pieces of all words, from the package ``wordllama``: 32,000 vectors
distilled from the input embeddings of large language models (Miller 2024,
https://github.com/dleemiller/WordLlama). A word's vector is the sum of its pieces' vectors.
:class:`AdaptedSpace` is fitted to the posts of one collection; see :mod:`tweetrerank.pipeline.adapt`.

A text is the sum of its words' vectors.
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

Vectors = npt.NDArray[np.float32]

GENERAL, ADAPTED = "general", "adapted"  # Names of the two spaces
SHORT = 1e-6  # Length up to which a vector counts as 0
LETTERS = 1.5  # Letters for each piece of a known word: of Arabic or Chinese the pieces are letters
BLOCK = 256  # Words cut into pieces together; the time of many grows faster than their number

FORMAT, _SHA256 = "1", "sha256"


class Known(NamedTuple):
    """Vectors [V, E] of words, their lengths [V], and 1 for each that the space knows [V], else 0.

    The vector of an unknown word is made of the vectors of its letters, which tell its spelling.
    """

    vectors: Vectors
    lengths: Vectors
    is_known: Vectors


class WordSpace:
    """Vectors of any words, of ``size`` E.

    ``compute``: one or more words, V -> their vectors [V, E], and 1 for each known one [V], else 0.
    """

    def __init__(
        self, size: int, compute: Callable[[Sequence[str]], tuple[Vectors, Vectors]]
    ) -> None:
        self.size, self._compute = size, compute

    def vectors(self, words: Sequence[str]) -> Vectors:
        """Vectors of V words: [V, E]."""
        return self.take(words).vectors

    def take(self, words: Sequence[str]) -> Known:
        """Vectors of V words and their lengths."""
        none = np.zeros((0, self.size), np.float32), np.zeros(0, np.float32)
        vectors, is_known = self._compute(words) if words else none
        return Known(
            vectors, np.sqrt(np.einsum("ve,ve->v", vectors, vectors)), is_known
        )


@lru_cache(maxsize=1)
def general() -> WordSpace:
    """The vectors of the package ``wordllama``: 256 numbers.

    Raises RerankerError if it is missing, or its files are not those of a known version.
    """
    from tokenizers import Tokenizer

    # Its folder alone is of use: the package's own code may download other vectors.
    package = importlib.util.find_spec("wordllama")
    if package is None or not package.submodule_search_locations:
        raise RerankerError(
            "found no package wordllama, which has the word vectors; install it"
        )
    folder = Path(package.submodule_search_locations[0])
    try:
        (vectors,) = load_file(
            folder / "weights" / "l2_supercat_256.safetensors"
        ).values()
        cut = Tokenizer.from_file(
            str(folder / "tokenizers" / "l2_supercat_tokenizer_config.json")
        )
    except Exception as error:  # The tokenizer's errors have no class of their own.
        raise RerankerError(
            f"{folder}: found no word vectors that can be read ({error}); install wordllama again"
        ) from None
    cut.no_padding()
    cut.no_truncation()
    begins = np.zeros(len(vectors), np.bool_)
    begins[[number for piece, number in cut.get_vocab().items() if piece[0] == "▁"]] = (
        True
    )

    def compute(words: Sequence[str]) -> tuple[Vectors, Vectors]:
        blocks = [words[start : start + BLOCK] for start in range(0, len(words), BLOCK)]
        vectors, pieces = map(np.concatenate, zip(*map(sums, blocks), strict=True))
        is_known = (pieces <= 1) | (pieces * LETTERS <= np.array([*map(len, words)]))
        return vectors, is_known.astype(np.float32)

    def sums(words: Sequence[str]) -> tuple[Vectors, Rows]:
        # Lone surrogates are no UTF-8.
        clean = [
            w if w.isascii() else w.encode(errors="replace").decode() for w in words
        ]
        text = " ".join(clean)
        # Half the time of a list, where each word begins with a piece that begins with a space.
        is_one = text.split() == clean and "▁" not in text
        # The tokenizer's model alone takes two thirds of the time; it looks for no special tokens.
        spaced = [
            f"▁{each.replace(' ', '▁')}" for each in ([text] if is_one else clean)
        ]
        lists = [[piece.id for piece in cut.model.tokenize(each)] for each in spaced]
        ids = np.fromiter(chain.from_iterable(lists), np.int64)
        lengths = np.fromiter(map(len, lists), np.int64)
        starts = np.flatnonzero(begins[ids]) if is_one else np.cumsum(lengths) - lengths
        pieces = Ragged(np.arange(len(ids)), np.append(starts, len(ids)))
        # Half precision in the file and in memory; only these are widened.
        return sums_of(pieces, vectors[ids].astype(np.float32)), pieces.lengths

    return WordSpace(vectors.shape[1], compute)


def unit(vectors: Vectors) -> Vectors:
    """Vectors [V, E] of length 1, or 0."""
    lengths = np.sqrt(np.einsum("ve,ve->v", vectors, vectors))
    return (
        vectors * np.where(lengths > SHORT, 1 / np.maximum(lengths, SHORT), 0)[:, None]
    )


def text_vectors(texts: Sequence[str]) -> Vectors:
    """[T, E] sum of the general vectors of each text's words, of length 1, or 0."""
    lexicon = Lexicon.from_texts(texts)
    return unit(sums_of(lexicon.texts, general().vectors(lexicon.words)))


def general_vectors(
    texts: Iterable[str], common: int = 20_000, size: int = 100
) -> WordVectors:
    """General vectors of the words of texts, after those of the most common English words.

    They take the place of a file of word vectors in a training, in ``size`` dimensions.
    """
    from wordfreq import top_n_list

    counts = Counter(word for text in texts for word in set(cut_words(text)))
    # Words of our own splitting only, most common first as in a file.
    first = dict.fromkeys(
        w for word in top_n_list("en", common) for w in cut_words(word)
    )
    known = list(dict.fromkeys([*first, *(word for word, _ in counts.most_common())]))
    return reduced(WordVectors(known, general().vectors(known)), size)


class AdaptedSpace(WordSpace):
    """Word vectors fitted to the posts of a collection.

    The vector of one of the W ``words`` of the posts is its general vector, mapped by ``linear``
    [256, E], and what the posts add to it, ``codes`` [W, E] · ``scales`` [W]: ``general(w) · linear
    + codes[w] · scales[w]``; only the first part for a word that they lack.
    """

    def __init__(
        self,
        words: Sequence[str],
        codes: npt.NDArray[np.int8],
        scales: Vectors,
        linear: Vectors,
    ) -> None:
        self.words, self.codes, self.scales, self.linear = (
            list(words),
            codes,
            scales,
            linear,
        )
        self._number = {word: row for row, word in enumerate(self.words)}
        super().__init__(linear.shape[1], self._vectors_of)

    def knows(self, word: str) -> bool:
        """Whether the posts had this word."""
        return word in self._number

    def _vectors_of(self, words: Sequence[str]) -> tuple[Vectors, Vectors]:
        found = general().take(words)
        vectors, is_known = found.vectors @ self.linear, found.is_known.copy()
        numbers = np.fromiter(
            (self._number.get(word, -1) for word in words), np.int64, len(words)
        )
        known = np.flatnonzero(numbers >= 0)
        rows = numbers[known]
        vectors[known] += self.codes[rows] * self.scales[rows, None]
        is_known[known] = 1
        return vectors, is_known

    def content(self, description: Mapping[str, str]) -> bytes:
        """The content of a safetensors file, with a description in its header."""
        spelled = np.frombuffer(
            "\n".join(self.words).encode(errors="replace"), dtype=np.uint8
        )
        arrays: dict[str, npt.NDArray[Any]] = {"words": spelled, "codes": self.codes}
        arrays |= {"scales": self.scales, "linear": self.linear}
        made = {"format": FORMAT, **description}
        return save(arrays, {**made, _SHA256: _digest(arrays, made)})

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a file of :meth:`content`; RerankerError if it is missing, damaged or of another
        format."""
        try:
            arrays, made = load_file(path), description_of(path)
            if (expected := made.pop(_SHA256, None)) is None:
                warn(
                    f"{path}: made by an earlier version, and unchecked; run pipeline.adapt again"
                )
            elif expected != _digest(arrays, made):
                raise ValueError("another SHA-256 than at writing")
            spelled = arrays.pop("words").tobytes().decode()
            words = spelled.split("\n") if spelled else []
            space = cls(words, **arrays)
            shapes = (space.codes.shape, space.scales.shape, space.linear.shape)
            wanted = (
                (len(words), space.size),
                (len(words),),
                (general().size, space.size),
            )
            if shapes != wanted or made.get("format") != FORMAT:
                raise ValueError(
                    f"arrays of {shapes}, expected {wanted} and format {FORMAT}"
                )
        except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
            raise _unreadable(path, error) from None
        return space


def description_of(path: Path) -> dict[str, str]:
    """The description in the header of an adapted space's file; raises as its ``load``."""
    try:
        with safe_open(path, "numpy") as content:
            return dict(content.metadata() or {})
    except (OSError, SafetensorError) as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: Exception) -> RerankerError:
    return RerankerError(
        f"{path}: found no adapted word vectors ({error}); run pipeline.adapt again"
    )


def _digest(
    arrays: Mapping[str, npt.NDArray[Any]], description: Mapping[str, str]
) -> str:
    """SHA-256 of an adapted space's arrays and description."""
    digest = hashlib.sha256(json.dumps(description, sort_keys=True).encode())
    for name, array in sorted(arrays.items()):
        digest.update(name.encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def quantized(vectors: Vectors) -> tuple[npt.NDArray[np.int8], Vectors]:
    """Vectors [V, E] in eight bits: codes [V, E] and scales [V]."""
    scales = np.abs(vectors).max(axis=1, initial=0.0) / 127
    codes = np.rint(vectors / np.where(scales > 0, scales, 1)[:, None])
    return codes.astype(np.int8), scales.astype(np.float32)
