"""Sequences of terms, concatenated, and their distinct windows.

Posts of one topic repeat one another: retweets, words of the query, common phrases. The output of a
convolution depends only on the terms under its filter, so it is computed once for each distinct
window and looked up for every position that holds it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from rerankers.text.inputs import Packed

Ids = npt.NDArray[np.int64]

# 2^64 divided by the golden ratio: its multiples are spread evenly (Knuth, volume 3, section 6.4).
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_HIGHEST_KEY = 2**64 - 1


@dataclass(frozen=True)
class TokenSequences:
    """N concatenated sequences of T terms in all.

    Attributes:
        ids: [T] terms; [T, depth + 1] windows at each depth where these are precomputed.
        lengths: [N] terms of each sequence.
        remaining: [T] terms from each position to the end of its sequence, its own included.
    """

    ids: Ids
    lengths: Ids
    remaining: Ids

    @classmethod
    def from_packed(cls, packed: Packed, rows: Ids, longest: int) -> "TokenSequences":
        """The texts ``rows`` [N], each cut to its first ``longest`` terms."""
        lengths = np.minimum(packed.lengths[rows], longest)
        places = _count_within(lengths)
        ids = packed.ids[np.repeat(packed.starts[rows], lengths) + places].astype(np.int64)
        return cls(ids, lengths, np.repeat(lengths, lengths) - places)

    @classmethod
    def from_text(cls, ids: Ids) -> "TokenSequences":
        """One text of the terms ``ids`` [T]."""
        return cls(ids, np.array([len(ids)]), np.arange(len(ids), 0, -1))

    @classmethod
    def joined(cls, parts: Sequence["TokenSequences"]) -> "TokenSequences":
        """The sequences of all ``parts``, in their order."""
        return cls(
            np.concatenate([part.ids for part in parts]),
            np.concatenate([part.lengths for part in parts]),
            np.concatenate([part.remaining for part in parts]),
        )

    def windows(self, values: Ids, width: int) -> list[Ids]:
        """``values`` [T] at each position and at the ``width`` - 1 after it, 0 after the end."""
        columns = [values]
        for shift in range(1, width):
            later = np.zeros_like(values)
            later[: max(0, len(values) - shift)] = values[shift:]
            later[self.remaining <= shift] = 0
            columns.append(later)
        return columns

    def padded(self, values: Ids, padding: int) -> Ids:
        """``values`` [T] as one row for each sequence: [N, L], L the longest (at least 1)."""
        rows = np.full(self.inside.shape, padding, dtype=np.int64)
        rows[self.inside] = values
        return rows

    @cached_property
    def inside(self) -> npt.NDArray[np.bool_]:
        """[N, L] whether a position of :meth:`padded` holds a term."""
        inside: npt.NDArray[np.bool_] = (
            np.arange(max(1, int(self.lengths.max(initial=0)))) < self.lengths[:, None]
        )
        return inside


def distinct(columns: Sequence[Ids]) -> tuple[Ids, Ids]:
    """Distinct rows of a table, given as ``columns`` [T] of numbers from 0 on.

    Returns:
        [U] positions of the distinct rows, and [T] the number of each position's row among them.
        A few rows may be found twice; different rows are never merged.
    """
    keys = columns[0].astype(np.uint64)
    highest = int(columns[0].max(initial=0))
    for column in columns[1:]:
        base = int(column.max(initial=0)) + 1
        if (highest + 1) * base - 1 > _HIGHEST_KEY:
            representatives, which = _distinct_keys(keys)
            keys, highest = which.astype(np.uint64), len(representatives)
        keys = keys * np.uint64(base) + column.astype(np.uint64)
        highest = (highest + 1) * base - 1
    return _distinct_keys(keys)


def _distinct_keys(keys: npt.NDArray[np.uint64]) -> tuple[Ids, Ids]:
    """A hash table without chains: on a collision, an entry keeps its own representative."""
    bits = max(4, int(2 * len(keys)).bit_length())
    slots = ((keys * _SPREAD) >> np.uint64(64 - bits)).astype(np.int64)
    places = np.arange(len(keys))
    table = np.empty(2**bits, dtype=np.int64)
    table[slots] = places
    found = table[slots]
    found = np.where(keys[found] == keys, found, places)
    is_representative = found == places
    numbers = np.cumsum(is_representative) - 1
    return np.flatnonzero(is_representative), numbers[found]


def used_ids(inputs: Sequence[Packed]) -> Ids:
    """All identifiers in ``inputs`` except 0, ascending."""
    highest = max((int(packed.ids.max(initial=0)) for packed in inputs), default=0)
    is_used = np.zeros(highest + 1, dtype=np.bool_)
    for packed in inputs:
        is_used[packed.ids] = True
    is_used[0] = False
    return np.flatnonzero(is_used)


def _count_within(lengths: Ids) -> Ids:
    """0, 1, … for each of ``lengths`` in turn."""
    ends = np.cumsum(lengths)
    return np.arange(int(lengths.sum())) - np.repeat(ends - lengths, lengths)
