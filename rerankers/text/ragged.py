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

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Ragged:
    """N lists of T values in all, one after the other: token ids, words, windows of texts."""

    values: npt.NDArray[Any]  # [T], or [T, K] for values of K numbers
    starts: Rows  # [N + 1] start of each list in ``values``

    @classmethod
    def from_lengths(
        cls, values: npt.NDArray[Any], lengths: npt.NDArray[np.integer]
    ) -> Ragged:
        """Lists of the given ``lengths`` [N]."""
        starts = np.zeros(len(lengths) + 1, np.int64)
        np.cumsum(lengths, out=starts[1:])
        return Ragged(values, starts)

    @classmethod
    def joined(cls, parts: Sequence[Ragged]) -> Ragged:
        """The lists of at least one part, part after part."""
        if len(parts) == 1:
            return parts[0]
        values = np.concatenate([part.values for part in parts])
        return Ragged.from_lengths(
            values, np.concatenate([part.lengths for part in parts])
        )

    @classmethod
    def split(cls, values: Rows, end: int) -> Ragged:
        """Lists that each ended with ``end``, which is left out."""
        ends = np.flatnonzero(values == end)
        # n ends, which are no values, precede the n-th list.
        return cls(
            values[values != end], np.concatenate([[0], ends - np.arange(len(ends))])
        )

    def __len__(self) -> int:
        return len(self.starts) - 1

    @cached_property
    def lengths(self) -> Rows:
        """[N] length of each list."""
        return np.diff(self.starts)

    def lengths_of(self, rows: Rows) -> Rows:
        """[M] lengths of the lists ``rows`` [M]; no others are read."""
        return self.starts[rows + 1] - self.starts[rows]

    @cached_property
    def owners(self) -> Rows:
        """[T] list of each value, ascending."""
        return np.repeat(np.arange(len(self)), self.lengths)

    @cached_property
    def positions(self) -> Rows:
        """[T] position of each value in its list, from 0."""
        return np.arange(len(self.values)) - np.repeat(self.starts[:-1], self.lengths)

    @cached_property
    def remaining(self) -> Rows:
        """[T] number of values from each one to the end of its list, itself included."""
        return np.repeat(self.starts[1:], self.lengths) - np.arange(len(self.values))

    @cached_property
    def inside(self) -> npt.NDArray[np.bool_]:
        """[N, L] whether a place of :meth:`padded` has a value."""
        columns = np.arange(max(1, int(self.lengths.max(initial=0))))
        return columns < self.lengths[:, None]

    def take(self, rows: Rows, longest: int | None = None) -> Ragged:
        """The lists ``rows`` [M] in this order, each cut to its first ``longest`` values."""
        lengths = self.lengths_of(rows)
        if longest is not None:
            lengths = np.minimum(lengths, longest)
        taken = Ragged.from_lengths(self.values, lengths)
        places = np.repeat(self.starts[rows] - taken.starts[:-1], lengths)
        places += np.arange(len(places))
        return Ragged(self.values[places], taken.starts)

    def padded(self, fill: float) -> npt.NDArray[Any]:
        """The lists as rows [N, L], L the longest length (at least 1), ending with ``fill``."""
        rows = np.full(self.inside.shape, fill, dtype=self.values.dtype)
        rows[self.inside] = self.values
        return rows


def sums_of(
    lists: Ragged,
    vectors: npt.NDArray[np.float32],
    weights: npt.NDArray[np.float32] | None = None,
) -> npt.NDArray[np.float32]:
    """[N, E] sum of the ``vectors`` [V, E] of each list's rows, times ``weights`` [T]."""
    if weights is None:
        weights = np.ones(len(lists.values), dtype=np.float32)
    sums = np.zeros((len(lists), vectors.shape[1]), dtype=np.float32)
    starts, rows = lists.starts.astype(np.int64), lists.values.astype(np.int64)
    size = len(lists), *vectors.shape
    _sparse_product()(*size, starts, rows, weights, vectors.ravel(), sums.ravel())
    return sums


@cache
def _sparse_product() -> Any:
    """SciPy's product of a sparse matrix and vectors, from the file of its extension alone.

    An import of ``scipy.sparse`` takes half a second and 20 MB: it imports most of NumPy.
    """
    scipy = find_spec("scipy")
    assert scipy and scipy.submodule_search_locations
    folders = [str(Path(root, "sparse")) for root in scipy.submodule_search_locations]
    spec = PathFinder.find_spec("_sparsetools", folders)
    assert spec and spec.loader
    extension = module_from_spec(spec)
    spec.loader.exec_module(extension)
    return extension.csr_matvecs


class Growing:
    """Arrays of N rows each, to which rows are appended; in time in proportion to these."""

    def __init__(self, arrays: Sequence[npt.NDArray[Any]]) -> None:
        self._arrays, self._size = list(arrays), len(arrays[0])

    def __len__(self) -> int:
        return self._size

    def arrays(self) -> list[npt.NDArray[Any]]:
        """The arrays; further rows do not change them."""
        return [array[: self._size] for array in self._arrays]

    def append(self, *rows: npt.NDArray[Any]) -> None:
        """Append to each array."""
        first, self._size = self._size, self._size + len(rows[0])
        if self._size > len(self._arrays[0]):
            small, room = self._arrays, max(1024, 2 * self._size)
            self._arrays = [
                np.empty((room, *array.shape[1:]), array.dtype) for array in small
            ]
            for array, old in zip(self._arrays, small, strict=True):
                array[:first] = old[:first]
        for array, new in zip(self._arrays, rows, strict=True):
            array[first : self._size] = new


GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""2^64 divided by the golden ratio: the upper bits of its multiples are spread evenly (Knuth,
volume 3, section 6.4)."""
_HASH = np.uint64(48)  # Bits of the hash of a sequence of characters


def distinct(
    columns: Sequence[npt.NDArray[Any]], is_exact: bool = True
) -> tuple[Rows, Rows]:
    """Distinct rows of a table, given as one or more columns [T] of integers from 0 on.

    Unless ``is_exact`` a few kinds of rows may be returned twice, in less time.

    Returns:
        [U] place of one row of each kind, ascending, and [T] the kind of each row, from 0 to U - 1.
    """
    keys, count = columns[0].astype(np.uint64), int(columns[0].max(initial=0)) + 1
    for column in columns[1:]:
        base = int(column.max(initial=0)) + 1
        if count * base > 2**64:
            first, kinds = distinct([keys], is_exact)
            keys, count = kinds.astype(np.uint64), len(first)
        keys = keys * np.uint64(base) + column.astype(np.uint64)
        count *= base
    holders = _holders(keys, is_exact)
    is_holder = holders == np.arange(len(keys))
    return np.flatnonzero(is_holder), (np.cumsum(is_holder) - 1)[holders]


def _holders(keys: npt.NDArray[np.uint64], is_exact: bool = True) -> Rows:
    """[T] one of the rows with each row's key, the same for all of these."""
    bits = max(4, int(2 * len(keys)).bit_length())
    slots = ((keys * GOLDEN) >> np.uint64(64 - bits)).astype(np.int64)
    table = np.empty(2**bits, dtype=np.int64)
    # In each round, one of the rows that share a slot holds it. Those equal to it are done; the few
    # others try again among themselves.
    table[slots] = np.arange(len(keys))
    holders = table[slots]
    rest = np.flatnonzero(keys[holders] != keys)
    if not is_exact:
        holders[rest] = rest  # each one a kind of its own
    while is_exact and len(rest):
        table[slots[rest]] = rest
        owner = table[slots[rest]]
        holders[rest] = owner
        rest = rest[keys[owner] != keys[rest]]
    return holders


def among(values: npt.NDArray[Any], few: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """[T] which values are among a few ascending ones; NumPy's ``isin`` sorts the values."""
    if not len(few):
        return np.zeros(len(values), dtype=np.bool_)
    return few.take(np.searchsorted(few, values), mode="clip") == values


def code_points(texts: Sequence[str]) -> Ragged:
    """The Unicode code points (uint32) of each text."""
    # Some posts hold half a surrogate pair.
    encoded = "".join(texts).encode("utf-32-le", errors="surrogatepass")
    lengths = np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))
    return Ragged.from_lengths(
        np.frombuffer(encoded, dtype="<u4").astype(np.uint32), lengths
    )


def distinct_grams(codes: Ragged, size: int) -> Ragged:
    """Identifiers (uint64) of the distinct sequences of ``size`` characters of each text.

    Identifiers are hashes of 48 bits, ascending in each text. ``codes`` are the texts'
    :func:`code_points`.
    """
    code, text = codes.values.astype(np.uint64) + np.uint64(1), codes.owners
    last = max(0, len(code) - size + 1)
    keys = np.zeros(last, dtype=np.uint64)
    for offset in range(size):
        keys += code[offset : last + offset]
        keys *= GOLDEN
    keys >>= np.uint64(16)
    keys |= text[:last].astype(np.uint64) << _HASH
    keys = keys[text[:last] == text[size - 1 :]]
    keys.sort()
    keys = np.concatenate([keys[:1], keys[1:][keys[1:] != keys[:-1]]])
    starts = np.searchsorted(keys, np.arange(len(codes) + 1, dtype=np.uint64) << _HASH)
    return Ragged(keys & ((np.uint64(1) << _HASH) - np.uint64(1)), starts)
