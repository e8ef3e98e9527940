"""Arrays in place of loops over texts: ragged lists, distinct rows, characters."""

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
    """N lists of T values in all, one after the other: token ids, words, spans."""

    values: Array  # [T], or [T, K] for values of K numbers
    starts: Rows  # [N + 1] start of each list in ``values``

    @classmethod
    def from_lengths(
        cls,
        values: Array,
        lengths: npt.NDArray[np.integer],
    ) -> Ragged:
        """Cut values into lists of ``lengths`` [N]."""
        starts = np.zeros(len(lengths) + 1, np.int64)
        np.cumsum(lengths, out=starts[1:])
        return Ragged(values, starts)

    @classmethod
    def joined(cls, parts: Sequence[Ragged]) -> Ragged:
        """Lists of one or more parts, part after part."""
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
        """Split values at each ``end``, which closes a list and is dropped."""
        ends = np.flatnonzero(values == end)
        # The n-th list comes after n ends, which are dropped.
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
        """Return the lengths [M] of the lists ``rows`` [M], without reading others."""
        return self.starts[rows + 1] - self.starts[rows]

    @cached_property
    def owners(self) -> Rows:
        """List of each value [T], ascending."""
        return np.repeat(np.arange(len(self)), self.lengths)

    @cached_property
    def positions(self) -> Rows:
        """Position [T] of each value in its list, from 0."""
        starts = np.repeat(self.starts[:-1], self.lengths)
        return np.arange(len(self.values)) - starts

    @cached_property
    def remaining(self) -> Rows:
        """Number [T] of values from each value to the end of its list, inclusive."""
        ends = np.repeat(self.starts[1:], self.lengths)
        return ends - np.arange(len(self.values))

    @cached_property
    def inside(self) -> Bools:
        """Whether a place of :meth:`padded` has a value [N, L]."""
        longest = int(self.lengths.max(initial=0))
        columns = np.arange(max(1, longest))
        return columns < self.lengths[:, None]

    def take(
        self,
        rows: Rows,
        longest: int | None = None,
    ) -> Ragged:
        """Return the lists ``rows`` [M] in this order.

        ``longest``: each list is cut to so many values.
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
        """Return the lists as rows [N, L], with ``fill`` after the last value.

        L is the longest length, at least 1.
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
    """Sum the vectors of each list's rows: [N, E].

    Args:
        lists: N lists of T rows in all.
        vectors: [V, E].
        weights: [T] factor of each row's vector. None: 1.
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
    """SciPy's product of a sparse matrix and vectors, loaded from its extension file.

    The import of ``scipy.sparse`` would take half a second and 20 MB: it imports most
    of NumPy.
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
    """Arrays of N rows each, to which rows can be appended.

    The time of an append is proportional to the number of new rows.
    """

    def __init__(self, arrays: Sequence[Array]) -> None:
        self._buffers = list(arrays)
        self._size = len(arrays[0])

    def __len__(self) -> int:
        return self._size

    def arrays(self) -> list[Array]:
        """Return the arrays; later appends do not change them."""
        return [buffer[: self._size] for buffer in self._buffers]

    def append(self, *rows: Array) -> None:
        """Append rows to each array."""
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
"""2^64 divided by the golden ratio.

The upper bits of its multiples are spread evenly (Knuth, volume 3, section 6.4).
"""
_HASH_BITS = np.uint64(48)  # Length of the hash of a sequence of characters


def distinct(
    columns: Sequence[Array],
    is_exact: bool = True,
) -> tuple[Rows, Rows]:
    """Find the distinct rows of a table.

    Args:
        columns: one or more columns [T] of integers of at least 0.
        is_exact: False saves time, but may return a few rows twice.

    Returns:
        Place of one row of each kind, ascending [U], and kind of each row, from 0 to
        U - 1 [T].
    """
    keys = columns[0].astype(np.uint64)
    count = int(columns[0].max(initial=0)) + 1  # Keys are below it
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
    """For each row [T], the row that represents all rows with its key."""
    bits = max(4, int(2 * len(keys)).bit_length())
    hashes = (keys * GOLDEN) >> np.uint64(64 - bits)
    slots = hashes.astype(np.int64)
    table = np.empty(2**bits, dtype=np.int64)
    # In each round, one of the rows that share a slot holds it. Rows of the same key
    # are represented by it. The few rows of other keys compete again in the next round.
    table[slots] = np.arange(len(keys))
    holders = table[slots]
    pending = np.flatnonzero(keys[holders] != keys)
    if not is_exact:
        holders[pending] = pending  # Each row represents itself
        return holders
    while len(pending):
        table[slots[pending]] = pending
        winners = table[slots[pending]]
        holders[pending] = winners
        pending = pending[keys[winners] != keys[pending]]
    return holders


def among(values: Array, few: Array) -> Bools:
    """Whether each value [T] is among a few ascending values.

    Faster than NumPy's ``isin``, which sorts the values.
    """
    if not len(few):
        return np.zeros(len(values), dtype=np.bool_)
    places = np.searchsorted(few, values)
    return few.take(places, mode="clip") == values


def code_points(texts: Sequence[str]) -> Ragged:
    """Unicode code points (uint32) of each text."""
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
    """Identify the distinct sequences of ``size`` characters in each text.

    ``codes``: the texts' :func:`code_points`. Identifiers (uint64) are hashes of 48
    bits, ascending in each text.
    """
    characters = codes.values.astype(np.uint64) + np.uint64(1)
    owners = codes.owners
    count = max(0, len(characters) - size + 1)
    keys = np.zeros(count, dtype=np.uint64)
    for offset in range(size):
        keys += characters[offset : count + offset]
        keys *= GOLDEN
    keys >>= np.uint64(16)
    # The text's number above the hash: one sort orders the hashes of all texts.
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
