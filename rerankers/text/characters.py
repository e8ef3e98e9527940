"""Characters of many texts as arrays, counted and compared without a loop over texts."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rerankers.text.ragged import Ragged

_ODD = np.uint64(0x9E3779B97F4A7C15)
"""Multiplied by it, numbers that are alike differ in their upper bits."""


def code_points(texts: Sequence[str]) -> Ragged:
    """The Unicode code points (uint32) of each text."""
    # Some posts hold half a surrogate pair.
    encoded = "".join(texts).encode("utf-32-le", errors="surrogatepass")
    lengths = np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))
    return Ragged.from_lengths(np.frombuffer(encoded, dtype="<u4").astype(np.uint32), lengths)


def trigrams(codes: Ragged) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
    """Identifiers of all trigrams inside a text, and the text of each: two arrays [G]."""
    code, text = codes.values.astype(np.uint64), codes.owners
    shift = np.uint64(21)  # bits of a code point
    found = (code[:-2] << (shift + shift)) | (code[1:-1] << shift) | code[2:]
    is_inside = text[:-2] == text[2:]
    return found[is_inside], text[:-2][is_inside]


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
