"""Lists of numbers of different lengths, one after the other in one array."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Ragged:
    """N lists of T numbers in all.

    Attributes:
        values: [T].
        starts: [N + 1] where each list begins.
    """

    values: npt.NDArray[Any]
    starts: Rows

    @classmethod
    def of(cls, values: npt.NDArray[Any], counts: npt.NDArray[np.integer]) -> "Ragged":
        """Lists of so many numbers each, ``counts`` [N]."""
        return cls(values, np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]))

    @classmethod
    def joined(cls, parts: Sequence["Ragged"]) -> "Ragged":
        """One after the other; at least one part."""
        if len(parts) == 1:
            return parts[0]
        values = np.concatenate([part.values for part in parts])
        return cls.of(values, np.concatenate([part.counts for part in parts]))

    def __len__(self) -> int:
        return len(self.starts) - 1

    @cached_property
    def counts(self) -> Rows:
        """[N] numbers of each list."""
        return np.diff(self.starts)

    @cached_property
    def owners(self) -> Rows:
        """[T] the list of each number, in ascending order."""
        return np.repeat(np.arange(len(self)), self.counts)

    @cached_property
    def places(self) -> Rows:
        """[T] the place of each number in its list, from 0."""
        return np.arange(len(self.values)) - np.repeat(self.starts[:-1], self.counts)

    def take(self, rows: Rows) -> "Ragged":
        """The lists ``rows`` [M], in this order."""
        found = Ragged.of(self.values[:0], self.counts[rows])
        shift = np.repeat(self.starts[rows] - found.starts[:-1], found.counts)
        return Ragged(self.values[np.arange(len(shift)) + shift], found.starts)
