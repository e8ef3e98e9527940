"""Posts' vectors on disk: all that is left to do for a pair is to compare them with the query's.

In a folder of :mod:`rerankers.engine.precomputed_folder`:

``VIEW.starts.npy``   where each post begins in ``VIEW.places``
``VIEW.places``       for each place of a text, its window at every depth [T, depth + 1]
``TOWER.DEPTH``       the vectors of distinct windows [U, F], as they are compared

A model to which a whole view is one vector has, for this view, the vectors of the posts
(``VIEW.0``), and for the others their terms in ``VIEW.places`` [T, 1].

Arrays are little-endian, and mapped into memory rather than read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rerankers.engine.precomputed_folder import Keys, describe
from rerankers.engine.towers import WINDOWS
from rerankers.engine.window_similarities import QueryVectors, WindowSimilarities
from rerankers.engine.windows import distinct
from rerankers.text.inputs import TokenIds
from rerankers.text.ragged import Ragged

PLACE, NUMBER = np.dtype("<i4"), np.dtype("<f4")

_NO_PLACES = np.zeros((0, 1), dtype=PLACE)


@dataclass(frozen=True)
class PrecomputedTower:
    """The vectors of distinct windows at every depth, in place of a tower that computes them.

    Attributes:
        levels: depth + 1 of [U, F].
    """

    levels: Sequence[Tensor]

    def similarities(self, posts: Ragged, query: QueryVectors) -> list[WindowSimilarities]:
        """Similarities of a query with posts, at each depth; ``posts.values`` are [T, depth + 1]."""
        found = []
        for depth, (level, asked) in enumerate(zip(self.levels, query.levels, strict=True)):
            windows = posts.values[:, depth]
            first, rows = distinct([windows])
            used, columns = torch.from_numpy(windows[first]), asked.T.contiguous()
            parts = [
                level.index_select(0, used[start : start + WINDOWS]) @ columns
                for start in range(0, len(used), WINDOWS)
            ]
            found.append(WindowSimilarities(torch.cat([*parts, query.padding]), rows, posts))
        return found


@dataclass(frozen=True)
class PrecomputedVectors:
    """What a folder holds.

    Attributes:
        directory: the folder.
        keys: its posts.
        inputs: view -> its texts, whose identifiers are the windows of every depth.
        towers: tower -> its vectors.
    """

    directory: Path
    keys: Keys
    inputs: Mapping[str, TokenIds]
    towers: Mapping[str, PrecomputedTower]

    @classmethod
    def open(cls, directory: Path, version: str, remedy: str) -> "PrecomputedVectors":
        """Map a folder into memory.

        Args:
            directory: the folder.
            version: what :func:`rerankers.engine.precomputed_folder.version_of` says of the checkpoint in use.
            remedy: how to make the folder again, for messages.

        Raises:
            RerankerError: it is no such folder, or of another checkpoint or format, or damaged.
        """
        description = describe(directory, version, remedy, ("inputs", "towers"))
        inputs = {
            view: TokenIds(
                _mapped(directory / f"{view}.places", PLACE, width) if width else _NO_PLACES,
                np.load(directory / f"{view}.starts.npy", allow_pickle=False),
            )
            for view, width in description["inputs"].items()
        }
        towers = {
            tower: PrecomputedTower([
                torch.from_numpy(_mapped(directory / f"{tower}.{depth}", NUMBER, size))
                for depth, size in enumerate(sizes)
            ])
            for tower, sizes in description["towers"].items()
        }  # fmt: skip
        return cls(directory, Keys.load(directory), inputs, towers)


def _mapped(path: Path, kind: np.dtype[Any], columns: int) -> npt.NDArray[Any]:
    """A file of numbers as [N, columns]; pages are read when they are asked for."""
    if not path.stat().st_size:
        return np.zeros((0, columns), dtype=kind)
    # Copy-on-write, for PyTorch has no arrays that are read-only; nothing writes into it.
    return np.memmap(path, dtype=kind, mode="c").reshape(-1, columns)
