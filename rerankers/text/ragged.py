"""Lists of different lengths in one array, the layout of all token ids, words and windows here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Ragged:
    """N lists of T values in all, one list after the other.

    Attributes:
        values: [T], or [T, K] for values of K numbers.
        starts: [N + 1] start of each list in ``values``.
    """

    values: npt.NDArray[Any]
    starts: Rows

    @classmethod
    def from_lengths(cls, values: npt.NDArray[Any], lengths: npt.NDArray[np.integer]) -> Ragged:
        """Lists of the given ``lengths`` [N]."""
        return Ragged(values, np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]))

    @classmethod
    def joined(cls, parts: Sequence[Ragged]) -> Ragged:
        """The lists of at least one part, part after part."""
        if len(parts) == 1:
            return parts[0]
        values = np.concatenate([part.values for part in parts])
        return Ragged.from_lengths(values, np.concatenate([part.lengths for part in parts]))

    def __len__(self) -> int:
        return len(self.starts) - 1

    @cached_property
    def lengths(self) -> Rows:
        """[N] length of each list."""
        return np.diff(self.starts)

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
        is_inside: npt.NDArray[np.bool_] = columns < self.lengths[:, None]
        return is_inside

    def take(self, rows: Rows, longest: int | None = None) -> Ragged:
        """The lists ``rows`` [M] in this order, each cut to its first ``longest`` values."""
        lengths = self.lengths[rows]
        if longest is not None:
            lengths = np.minimum(lengths, longest)
        starts = np.concatenate([[0], np.cumsum(lengths)])
        places = np.repeat(self.starts[rows] - starts[:-1], lengths)
        places += np.arange(len(places))
        return Ragged(self.values[places], starts)

    def padded(self, fill: float, values: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        """The lists as rows [N, L], L the longest length (at least 1), filled up at the end.

        Args:
            fill: value of the places after a list's end.
            values: [T] to use in place of the lists' own.
        """
        values = self.values if values is None else values
        rows = np.full(self.inside.shape, fill, dtype=values.dtype)
        rows[self.inside] = values
        return rows
