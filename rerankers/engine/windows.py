"""Texts laid end to end, and their distinct windows of terms.

Posts of one topic repeat one another: retweets, the query's words, the same phrases. What a
convolution computes depends on the terms under its filter alone, so it is computed once for each
distinct window, and every place that has the window looks it up.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from rerankers.text.inputs import Packed

Ids = npt.NDArray[np.int64]

# 2^64 divided by the golden ratio: its products are spread evenly (Knuth, volume 3, section 6.4).
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_HIGHEST_KEY = 2**64 - 1


@dataclass(frozen=True)
class TokenSequences:
    """N texts laid end to end: T places in all.

    Attributes:
        ids: [T] terms.
        lengths: [N] terms of each text.
        remaining: [T] terms from each place to the end of its text, its own included.
    """

    ids: Ids
    lengths: Ids
    remaining: Ids

    @classmethod
    def from_packed(cls, packed: Packed, rows: Ids, longest: int) -> "TokenSequences":
        """The texts ``rows`` [N], of each its first ``longest`` terms."""
        lengths = np.minimum(packed.lengths[rows], longest)
        places = _count_within(lengths)
        ids = packed.ids[np.repeat(packed.starts[rows], lengths) + places].astype(np.int64)
        return cls(ids, lengths, np.repeat(lengths, lengths) - places)

    @classmethod
    def joined(cls, parts: Sequence["TokenSequences"]) -> "TokenSequences":
        """One after the other."""
        return cls(
            np.concatenate([part.ids for part in parts]),
            np.concatenate([part.lengths for part in parts]),
            np.concatenate([part.remaining for part in parts]),
        )

    def windows(self, values: Ids, width: int) -> list[Ids]:
        """``values`` [T] of each place and of the ``width`` - 1 after it, 0 beyond the text."""
        columns = [values]
        for shift in range(1, width):
            later = np.zeros_like(values)
            later[: max(0, len(values) - shift)] = values[shift:]
            later[self.remaining <= shift] = 0
            columns.append(later)
        return columns

    def padded(self, values: Ids, padding: int) -> Ids:
        """``values`` [T] as one row a text: [N, L], L the longest (at least 1)."""
        rows = np.full(self.inside.shape, padding, dtype=np.int64)
        rows[self.inside] = values
        return rows

    @cached_property
    def inside(self) -> npt.NDArray[np.bool_]:
        """[N, L] where a row of :meth:`padded` has a term."""
        inside: npt.NDArray[np.bool_] = (
            np.arange(max(1, int(self.lengths.max(initial=0)))) < self.lengths[:, None]
        )
        return inside


def distinct(columns: Sequence[Ids]) -> tuple[Ids, Ids]:
    """Distinct rows of a table of ``columns``, each [T], of numbers from 0 on.

    Returns:
        [U] places of one representative each, and [T] which of them each place has. Rarely two
        representatives are alike; no two different rows ever share one.
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
    """A hash table without chains: who finds another key in his slot represents himself."""
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
    """Every identifier but 0 that is in ``inputs``, ascending."""
    highest = max((int(view.ids.max(initial=0)) for view in inputs), default=0)
    is_used = np.zeros(highest + 1, dtype=np.bool_)
    for view in inputs:
        is_used[view.ids] = True
    is_used[0] = False
    return np.flatnonzero(is_used)


def _count_within(lengths: Ids) -> Ids:
    """0, 1, … for each of ``lengths`` in turn."""
    ends = np.cumsum(lengths)
    return np.arange(int(lengths.sum())) - np.repeat(ends - lengths, lengths)
