"""A folder of arrays with a description: written in parts, mapped into memory when read.

Each array is a file of little-endian numbers. The description, ``precomputed.json``, holds their
types and shapes, so a missing or cut file is noticed when the folder is opened.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from rerankers.errors import RerankerError
from rerankers.text.ragged import Ragged, Rows

DESCRIPTION = "precomputed.json"


class ArrayWriter:
    """Writes a folder; the description comes last, at the end of the ``with`` block.

    Args:
        directory: an empty folder.
        description: more content of the description.

    Attributes:
        size: bytes of all arrays.
    """

    def __init__(self, directory: Path, description: Mapping[str, Any]) -> None:
        self._directory, self._description = directory, description
        self._files = ExitStack()
        self._streams: dict[str, IO[bytes]] = {}
        self._arrays: dict[str, dict[str, Any]] = {}
        self._lengths: dict[str, list[Rows]] = {}
        self.size = 0

    def append(self, name: str, rows: npt.NDArray[Any]) -> None:
        """Append rows [N, …] to an array; the first ones decide its type."""
        if name not in self._arrays:
            self._streams[name] = self._files.enter_context((self._directory / name).open("wb"))
            dtype = rows.dtype.newbyteorder("<").str
            self._arrays[name] = {"dtype": dtype, "shape": [0, *rows.shape[1:]]}
        array = self._arrays[name]
        rows.astype(array["dtype"], copy=False).tofile(self._streams[name])
        array["shape"][0] += len(rows)
        self.size += rows.nbytes

    def append_lists(self, name: str, lists: Ragged) -> None:
        """Append lists to a ragged array."""
        self.append(f"{name}.values", lists.values)
        self._lengths.setdefault(name, []).append(lists.lengths)

    def rows(self, name: str) -> int:
        """Rows of an array so far."""
        count: int = self._arrays[name]["shape"][0]
        return count

    def __enter__(self) -> ArrayWriter:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        with self._files:
            if error is not None:
                return
            for name, lengths in self._lengths.items():
                self.append(f"{name}.starts", np.cumsum(np.concatenate([[0], *lengths])))
        content = {**self._description, "arrays": self._arrays}
        text = json.dumps(content, indent=2, ensure_ascii=False)
        (self._directory / DESCRIPTION).write_text(f"{text}\n", encoding="utf-8")


class Arrays:
    """Reads a folder.

    Args:
        directory: the folder.
        remedy: how to make it again, for messages.

    Attributes:
        description: content of the description.

    Raises:
        RerankerError: the description or a file is missing or damaged.
    """

    def __init__(self, directory: Path, remedy: str) -> None:
        self.directory, self._remedy = directory, remedy
        path = directory / DESCRIPTION
        try:
            self.description: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            self._arrays = {
                name: (np.dtype(array["dtype"]), tuple(array["shape"]))
                for name, array in self.description["arrays"].items()
            }
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise self.error(
                path, f"found no description of precomputed posts ({error!r})"
            ) from None
        for name, (dtype, shape) in self._arrays.items():
            path, size = directory / name, math.prod(shape) * dtype.itemsize
            found = path.stat().st_size if path.is_file() else None
            if found != size:
                state = "is missing" if found is None else f"has {found} bytes"
                raise self.error(path, f"{state}, expected {size} bytes; the folder is damaged")

    def error(self, path: Path, problem: str) -> RerankerError:
        """An error about a file, with the remedy."""
        return RerankerError(f"{path}: {problem}; {self._remedy}")

    def names(self, group: str) -> list[str]:
        """NAME of all arrays ``GROUP.NAME`` and ``GROUP.NAME.…``, in the order of writing."""
        parts = [
            name.removeprefix(f"{group}.") for name in self._arrays if name.startswith(f"{group}.")
        ]
        return list(dict.fromkeys(part.partition(".")[0] for part in parts))

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        """An array, whose pages are read from the disk on use."""
        if name not in self._arrays:
            raise self.error(self.directory / DESCRIPTION, f"found no array {name}")
        dtype, shape = self._arrays[name]
        if not math.prod(shape):
            return np.zeros(shape, dtype)  # An empty file cannot be mapped.
        # Copy-on-write, as PyTorch has no read-only tensors; nothing is written.
        found: npt.NDArray[Any] = np.memmap(self.directory / name, dtype, "c", shape=shape)
        return found.view(np.ndarray)

    def ragged(self, name: str) -> Ragged:
        """A ragged array."""
        return Ragged(self[f"{name}.values"], self[f"{name}.starts"])
