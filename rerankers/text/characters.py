"""The characters of many texts as one array, to count them without a loop over texts."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_ODD = np.uint64(0x9E3779B97F4A7C15)
"""Multiplied by it, numbers that are alike differ in their upper bits."""


@dataclass(frozen=True)
class Characters:
    """N texts of C characters in all.

    Attributes:
        codes: [C] Unicode code points.
        text: [C] which text a character is of, in ascending order.
        counts: [N] characters of each text.
    """

    codes: npt.NDArray[np.uint32]
    text: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]

    @classmethod
    def of(cls, texts: Sequence[str]) -> "Characters":
        """Read texts as they are."""
        counts = np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))
        # Half a surrogate pair is no character, but it is in some posts.
        encoded = "".join(texts).encode("utf-32-le", errors="surrogatepass")
        codes = np.frombuffer(encoded, dtype="<u4").astype(np.uint32)
        return cls(codes, np.repeat(np.arange(len(texts)), counts), counts)

    def count(self, chosen: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
        """[N] how many of each text's characters are ``chosen`` [C], or [C'] of the first C'."""
        where = self.text[: len(chosen)][chosen]
        return np.bincount(where, minlength=len(self.counts))

    def share(self, chosen: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
        """[N] the same as a share of the text's characters; 0 for an empty text."""
        return self.count(chosen) / np.maximum(self.counts, 1)

    def trigrams(self) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
        """Identifiers of all trigrams inside a text, and the text of each; two arrays [G]."""
        codes = self.codes.astype(np.uint64)
        shift = np.uint64(21)  # bits of a code point
        found = (codes[:-2] << (shift + shift)) | (codes[1:-1] << shift) | codes[2:]
        inside = self.text[:-2] == self.text[2:]
        return found[inside], self.text[:-2][inside]


def distinct(
    identifiers: npt.NDArray[np.uint64], text: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]:
    """[G] one of the equal ``identifiers`` [G] of each text; ``text`` [G] says whose they are."""
    # A hash table of places, for sorting takes twice as long. In each round one of the places that
    # have a slot in common holds it; those equal to it have been found with it, and the few others
    # try again.
    bits = len(identifiers).bit_length() + 1
    mixed = (identifiers + text.astype(np.uint64) * _ODD) * _ODD
    slot = (mixed >> np.uint64(64 - bits)).astype(np.int64)
    table = np.empty(1 << bits, dtype=np.int64)
    found = np.zeros(len(identifiers), dtype=np.bool_)
    places = np.arange(len(slot))
    while len(slot):
        table[slot] = places
        holders = table[slot]
        is_holder = holders == places
        found[places[is_holder]] = True
        rest, holders, slot = places[~is_holder], holders[~is_holder], slot[~is_holder]
        differ = (identifiers[rest] != identifiers[holders]) | (text[rest] != text[holders])
        places, slot = rest[differ], slot[differ]
    return found


def among(
    identifiers: npt.NDArray[np.uint64], asked: npt.NDArray[np.uint64]
) -> npt.NDArray[np.int64]:
    """[H] the places where ``identifiers`` [G] are one of the few that are ``asked`` for [A]."""
    # By 16 bits of a product most of the others are passed over.
    possible = np.zeros(1 << 16, dtype=np.bool_)
    possible[_upper_bits(asked)] = True
    places = np.flatnonzero(possible[_upper_bits(identifiers)])
    found: npt.NDArray[np.int64] = places[np.isin(identifiers[places], asked)]
    return found


def _upper_bits(identifiers: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    return ((identifiers * _ODD) >> np.uint64(48)).astype(np.int64)
