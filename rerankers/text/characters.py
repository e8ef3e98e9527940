"""Characters of many texts as arrays, counted and compared without a loop over texts."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rerankers.text.distinct import GOLDEN, distinct
from rerankers.text.ragged import Ragged


def code_points(texts: Sequence[str]) -> Ragged:
    """The Unicode code points (uint32) of each text."""
    # Some posts hold half a surrogate pair.
    encoded = "".join(texts).encode("utf-32-le", errors="surrogatepass")
    lengths = np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))
    return Ragged.from_lengths(np.frombuffer(encoded, dtype="<u4").astype(np.uint32), lengths)


def distinct_trigrams(texts: Sequence[str]) -> Ragged:
    """Identifiers (uint64) of the distinct trigrams of each text, in no particular order."""
    codes = code_points(texts)
    code, text = codes.values, codes.owners
    is_inside = text[:-2] == text[2:]
    columns = [part[is_inside] for part in (text[:-2], code[:-2], code[1:-1], code[2:])]
    rows, _ = distinct(columns)
    owners, *codes_of_trigram = (column[rows].astype(np.uint64) for column in columns)
    first, second, third = codes_of_trigram
    shift = np.uint64(21)  # bits of a code point
    found = (first << (shift + shift)) | (second << shift) | third
    return Ragged.from_lengths(found, np.bincount(owners.astype(np.int64), minlength=len(texts)))


def among(
    identifiers: npt.NDArray[np.uint64], asked: npt.NDArray[np.uint64]
) -> npt.NDArray[np.int64]:
    """Places [H] of ``identifiers`` [G] that are among the few ``asked`` ones [A]."""
    # 16 bits of a hash exclude most of the others.
    possible = np.zeros(1 << 16, dtype=np.bool_)
    possible[_upper_bits(asked)] = True
    places = np.flatnonzero(possible[_upper_bits(identifiers)])
    found: npt.NDArray[np.int64] = places[np.isin(identifiers[places], asked)]
    return found


def _upper_bits(identifiers: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    return ((identifiers * GOLDEN) >> np.uint64(48)).astype(np.int64)
