"""Distinct windows of terms.

Posts of one topic repeat one another: retweets, words of the query, common phrases. The output of a
convolution depends only on the terms under its filter, so it is computed once for each distinct
window and looked up for every position that holds it.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from rerankers.text.ragged import Ragged

Ids = npt.NDArray[np.int64]

# 2^64 divided by the golden ratio: its multiples are spread evenly (Knuth, volume 3, section 6.4).
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_HIGHEST_KEY = 2**64 - 1


def windows_of(texts: Ragged, values: Ids, width: int) -> list[Ids]:
    """The windows of ``width`` places that start at each of the T places of texts.

    Args:
        values: [T] number above 0 of each place.

    Returns:
        Columns: ``values`` [T] at the windows' first place, second place, …; 0 beyond the end.
    """
    columns = [values]
    for shift in range(1, width):
        later = np.zeros_like(values)
        later[: max(0, len(values) - shift)] = values[shift:]
        later[texts.remaining <= shift] = 0
        columns.append(later)
    return columns


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


def used_ids(inputs: Iterable[Ragged]) -> Ids:
    """Every identifier above 0 in ``inputs``, ascending."""
    inputs = list(inputs)
    highest = max((int(ids.values.max(initial=0)) for ids in inputs), default=0)
    is_used = np.zeros(highest + 1, dtype=np.bool_)
    for ids in inputs:
        is_used[ids.values] = True
    is_used[0] = False
    return np.flatnonzero(is_used)
