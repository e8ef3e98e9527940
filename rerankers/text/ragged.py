"""Array operations that replace loops over texts.

They work on lists of different lengths, distinct rows, and characters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]
Keys = npt.NDArray[np.uint64]
Rows = npt.NDArray[np.int64]
Vectors = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Ragged:
    """N lists of different lengths, stored one after the other in an array of T values.

    The values may be token identifiers, rows of words, or spans.
    """

    values: Array  # [T], or [T, K] if each value is K numbers
    starts: Rows  # [N + 1] index in ``values`` of each list's start, and T at the end

    @classmethod
    def from_lengths(
        cls,
        values: Array,
        lengths: npt.NDArray[np.integer],
    ) -> Ragged:
        """Cut values into lists of the given lengths [N]."""
        starts = np.zeros(len(lengths) + 1, np.int64)
        np.cumsum(lengths, out=starts[1:])
        return Ragged(values, starts)

    @classmethod
    def joined(cls, parts: Sequence[Ragged]) -> Ragged:
        """Return the lists of all parts, part after part. There must be a part."""
        if len(parts) == 1:
            return parts[0]
        values = np.concatenate([part.values for part in parts])
        lengths = np.concatenate([part.lengths for part in parts])
        return Ragged.from_lengths(values, lengths)

    @classmethod
    def split(
        cls,
        values: Rows,
        end: int,
    ) -> Ragged:
        """Split values into lists. Each list is closed by ``end``, which is dropped."""
        ends = np.flatnonzero(values == end)
        # The n-th end (from 0) comes after n other ends, which are dropped as well.
        ends -= np.arange(len(ends))
        starts = np.concatenate([[0], ends])
        return cls(values[values != end], starts)

    def __len__(self) -> int:
        return len(self.starts) - 1

    @cached_property
    def lengths(self) -> Rows:
        """Length of each list [N]."""
        return np.diff(self.starts)

    def lengths_of(self, rows: Rows) -> Rows:
        """Return the lengths [M] of the lists ``rows`` [M].

        Other lists are not read, so this is faster than :attr:`lengths` for few lists.
        """
        return self.starts[rows + 1] - self.starts[rows]

    @cached_property
    def owners(self) -> Rows:
        """Number of the list that each value belongs to [T]; ascending."""
        return np.repeat(np.arange(len(self)), self.lengths)

    @cached_property
    def positions(self) -> Rows:
        """Position of each value in its list [T], from 0."""
        starts = np.repeat(self.starts[:-1], self.lengths)
        return np.arange(len(self.values)) - starts

    @cached_property
    def remaining(self) -> Rows:
        """Number of values from each value, inclusive, to the end of its list [T]."""
        ends = np.repeat(self.starts[1:], self.lengths)
        return ends - np.arange(len(self.values))

    @cached_property
    def inside(self) -> Bools:
        """Whether each place of :meth:`padded` has a value, not ``fill`` [N, L]."""
        longest = int(self.lengths.max(initial=0))
        columns = np.arange(max(1, longest))
        return columns < self.lengths[:, None]

    def take(
        self,
        rows: Rows,
        longest: int | None = None,
    ) -> Ragged:
        """Return the lists ``rows`` [M] in this order.

        If ``longest`` is given, each list is cut to its first ``longest`` values.
        """
        lengths = self.lengths_of(rows)
        if longest is not None:
            lengths = np.minimum(lengths, longest)
        taken = Ragged.from_lengths(self.values, lengths)
        shifts = self.starts[rows] - taken.starts[:-1]
        places = np.repeat(shifts, lengths)
        places += np.arange(len(places))
        return Ragged(self.values[places], taken.starts)

    def padded(self, fill: float) -> Array:
        """Return the lists as the rows of an array [N, L], filled up with ``fill``.

        L is the length of the longest list, but at least 1.
        """
        rows = np.full(
            self.inside.shape,
            fill,
            dtype=self.values.dtype,
        )
        rows[self.inside] = self.values
        return rows


def sums_of(
    lists: Ragged,
    vectors: Vectors,
    weights: Vectors | None = None,
) -> Vectors:
    """Return the sum of the vectors of each list's values [N, E].

    Args:
        lists: N lists. Their T values are rows of ``vectors``.
        vectors: V vectors [V, E].
        weights: factor of the vector of each value [T]. None: all are 1.
    """
    if weights is None:
        weights = np.ones(len(lists.values), dtype=np.float32)
    count, size = vectors.shape
    sums = np.zeros(
        (len(lists), size),
        dtype=np.float32,
    )
    _sparse_product()(
        len(lists),
        count,
        size,
        lists.starts.astype(np.int64),
        lists.values.astype(np.int64),
        weights,
        vectors.ravel(),
        sums.ravel(),
    )
    return sums


@cache
def _sparse_product() -> Any:
    """Return SciPy's function for the product of a sparse matrix and vectors.

    It is loaded from its extension file. Importing ``scipy.sparse`` would take half a
    second and 20 MB, because that imports most of NumPy.
    """
    scipy = find_spec("scipy")
    assert scipy and scipy.submodule_search_locations
    folders = [
        str(Path(folder, "sparse")) for folder in scipy.submodule_search_locations
    ]
    spec = PathFinder.find_spec("_sparsetools", folders)
    assert spec and spec.loader
    extension = module_from_spec(spec)
    spec.loader.exec_module(extension)
    return extension.csr_matvecs


class Growing:
    """Several arrays of N rows each, to which rows can be appended.

    On average, an append takes time proportional to the number of new rows.
    """

    def __init__(self, arrays: Sequence[Array]) -> None:
        self._buffers = list(arrays)
        self._size = len(arrays[0])

    def __len__(self) -> int:
        return self._size

    def arrays(self) -> list[Array]:
        """Return the arrays. Later appends do not change the returned arrays."""
        return [buffer[: self._size] for buffer in self._buffers]

    def append(self, *rows: Array) -> None:
        """Append new rows to all arrays: one argument of rows for each array."""
        start = self._size
        end = start + len(rows[0])
        if end > len(self._buffers[0]):
            self._enlarge(max(1024, 2 * end))
        for buffer, new_rows in zip(self._buffers, rows, strict=True):
            buffer[start:end] = new_rows
        self._size = end

    def _enlarge(self, capacity: int) -> None:
        buffers = []
        for rows in self.arrays():
            buffer = np.empty(
                (capacity, *rows.shape[1:]),
                rows.dtype,
            )
            buffer[: self._size] = rows
            buffers.append(buffer)
        self._buffers = buffers


GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""2^64 divided by the golden ratio, a factor for hashing.

The upper bits of its multiples are spread evenly (Knuth, volume 3, section 6.4).
"""
_HASH_BITS = np.uint64(48)  # Number of bits in the hash of a sequence of characters


def distinct(
    columns: Sequence[Array],
    is_exact: bool = True,
) -> tuple[Rows, Rows]:
    """Find the distinct rows of a table.

    Args:
        columns: one or more columns of T integers, none below 0.
        is_exact: if False, the function is faster, but may take a few equal rows for
            different ones.

    Returns:
        A tuple (places, kinds). ``places`` [U] has the index of one row of each kind,
        ascending. ``kinds`` [T] has the kind of each row, from 0 to U - 1.
    """
    keys = columns[0].astype(np.uint64)
    count = int(columns[0].max(initial=0)) + 1  # All keys are below it
    for column in columns[1:]:
        base = int(column.max(initial=0)) + 1
        if count * base > 2**64:
            first, kinds = distinct([keys], is_exact=is_exact)
            keys = kinds.astype(np.uint64)
            count = len(first)
        keys = keys * np.uint64(base) + column.astype(np.uint64)
        count *= base
    holders = _holders(keys, is_exact)
    is_holder = holders == np.arange(len(keys))
    first = np.flatnonzero(is_holder)
    kinds = np.cumsum(is_holder) - 1
    return first, kinds[holders]


def _holders(keys: Keys, is_exact: bool = True) -> Rows:
    """Return for each row the row that represents all rows with the same key [T].

    Unless ``is_exact``, a few rows represent themselves although they need not.
    """
    bits = max(4, int(2 * len(keys)).bit_length())
    hashes = (keys * GOLDEN) >> np.uint64(64 - bits)
    slots = hashes.astype(np.int64)
    table = np.empty(2**bits, dtype=np.int64)
    # In each round, one of the rows that share a slot wins the slot. It represents all
    # rows with the same key. The few rows with other keys compete again in the next
    # round.
    table[slots] = np.arange(len(keys))
    holders = table[slots]
    pending = np.flatnonzero(keys[holders] != keys)
    if not is_exact:
        holders[pending] = pending  # Each of these rows represents itself
        return holders
    while len(pending):
        table[slots[pending]] = pending
        winners = table[slots[pending]]
        holders[pending] = winners
        pending = pending[keys[winners] != keys[pending]]
    return holders


def among(values: Array, few: Array) -> Bools:
    """Return whether each value [T] is among a few values, which must be ascending.

    This is faster than NumPy's ``isin``, which sorts the values.
    """
    if not len(few):
        return np.zeros(len(values), dtype=np.bool_)
    places = np.searchsorted(few, values)
    return few.take(places, mode="clip") == values


def code_points(texts: Sequence[str]) -> Ragged:
    """Return the Unicode code points (uint32) of each text, as lists."""
    # Some posts contain half a surrogate pair.
    encoded = "".join(texts).encode("utf-32-le", errors="surrogatepass")
    codes = np.frombuffer(encoded, dtype="<u4").astype(np.uint32)
    lengths = np.fromiter(
        map(len, texts),
        dtype=np.int64,
        count=len(texts),
    )
    return Ragged.from_lengths(codes, lengths)


def distinct_grams(codes: Ragged, size: int) -> Ragged:
    """Return identifiers of the distinct sequences of ``size`` characters in each text.

    ``codes`` are the :func:`code_points` of the texts. Identifiers (uint64) are hashes
    of 48 bits, and are ascending in each text.
    """
    characters = codes.values.astype(np.uint64) + np.uint64(1)
    owners = codes.owners
    count = max(0, len(characters) - size + 1)
    keys = np.zeros(count, dtype=np.uint64)
    for offset in range(size):
        keys += characters[offset : count + offset]
        keys *= GOLDEN
    keys >>= np.uint64(16)
    # The number of the text is put above the bits of the hash, so that one sort orders
    # the hashes of all texts.
    keys |= owners[:count].astype(np.uint64) << _HASH_BITS
    is_in_one_text = owners[:count] == owners[size - 1 :]
    keys = keys[is_in_one_text]
    keys.sort()
    is_new = keys[1:] != keys[:-1]
    keys = np.concatenate([keys[:1], keys[1:][is_new]])
    texts = np.arange(len(codes) + 1, dtype=np.uint64)
    first_keys = texts << _HASH_BITS
    starts = np.searchsorted(keys, first_keys)
    mask = (np.uint64(1) << _HASH_BITS) - np.uint64(1)
    return Ragged(keys & mask, starts)
