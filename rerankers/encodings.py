"""Posts' vectors on disk: all that is left to do for a pair is to compare them with the query's.

``encodings.json``            which checkpoint made them, and how large every file is
``keys.npy``, ``rows.npy``    a hash of each text and URL, ascending, and the number of the post
``VIEW.starts.npy``           where each post begins in ``VIEW.places``
``VIEW.places``               for each place of a text, its window at every depth [T, depth + 1]
``TOWER.DEPTH``               the vectors of distinct windows [U, F], as they are compared

Posts are found by what they say, not by an id: one that is not there, or that has changed, is
encoded when it is scored. Arrays are little-endian, and mapped into memory rather than read.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rerankers.contexts import Ids, Texts, distinct
from rerankers.errors import RerankerError
from rerankers.towers import WINDOWS, Matches, Question
from rerankers.views import Packed

FORMAT = 1
DESCRIPTION = "encodings.json"
PLACE, NUMBER = np.dtype("<i4"), np.dtype("<f4")

_DESCRIBED = {"format", "version", "checkpoint", "files", "views", "towers"}
_NO_PLACES = np.zeros((0, 1), dtype=PLACE)
_PARTS = ("config.json", "model.safetensors", "vocabulary.json")
"""Files of a checkpoint on which its vectors depend."""


def version_of(checkpoint: Path) -> str:
    """A hash of everything that the vectors of a checkpoint depend on.

    Raises:
        RerankerError: a file of it cannot be read.
    """
    found = hashlib.sha256(str(FORMAT).encode())
    try:
        for name in _PARTS:
            found.update((checkpoint / name).read_bytes())
    except OSError as error:
        raise RerankerError(f"{checkpoint}: found no whole checkpoint ({error})") from None
    return found.hexdigest()


def keys_of(texts: Sequence[str], urls: Sequence[str]) -> npt.NDArray[np.uint64]:
    """128 bits of BLAKE2b for each of N posts: [N, 2]."""
    digests = [
        hashlib.blake2b(f"{text}\0{url}".encode(), digest_size=16).digest()
        for text, url in zip(texts, urls, strict=True)
    ]
    return np.frombuffer(b"".join(digests), dtype="<u8").reshape(-1, 2)


@dataclass(frozen=True)
class StoredTower:
    """The vectors of distinct windows at every depth, in place of a tower that computes them.

    Attributes:
        levels: depth + 1 of [U, F].
    """

    levels: Sequence[Tensor]

    def compare(self, texts: Texts, question: Question) -> list[Matches]:
        """A query against the places of ``texts``, whose identifiers are [T, depth + 1]."""
        found = []
        for depth, (level, phrases) in enumerate(zip(self.levels, question.phrases, strict=True)):
            windows = texts.ids[:, depth]
            first, which = distinct([windows])
            used, columns = torch.from_numpy(windows[first]), phrases.T.contiguous()
            parts = [
                level.index_select(0, used[start : start + WINDOWS]) @ columns
                for start in range(0, len(used), WINDOWS)
            ]
            found.append(Matches(torch.cat([*parts, question.nothing]), which))
        return found


@dataclass(frozen=True)
class Encodings:
    """What a folder holds.

    Attributes:
        directory: the folder.
        keys: [N, 2] of the posts, ascending; see :func:`keys_of`.
        rows: [N] number of each.
        views: view -> its texts, whose identifiers are the windows of every depth.
        towers: tower -> its vectors.
    """

    directory: Path
    keys: npt.NDArray[np.uint64]
    rows: Ids
    views: Mapping[str, Packed]
    towers: Mapping[str, StoredTower]

    @classmethod
    def open(cls, directory: Path, version: str, remedy: str) -> "Encodings":
        """Map a folder into memory.

        Args:
            directory: the folder.
            version: what :func:`version_of` says of the checkpoint in use.
            remedy: how to make the folder again, for messages.

        Raises:
            RerankerError: it is no such folder, or of another checkpoint or format, or damaged.
        """
        description = _describe(directory, remedy)
        if description["format"] != FORMAT or description["version"] != version:
            raise RerankerError(
                f"{directory}: found encodings by the checkpoint {description['checkpoint']} as it "
                f"was ({str(description['version'])[:12]}), expected those of the one in use "
                f"({version[:12]}); {remedy}"
            )
        for name, size in description["files"].items():
            path = directory / name
            found = path.stat().st_size if path.is_file() else None
            if found != size:
                state = "is missing" if found is None else f"has {found} bytes"
                raise RerankerError(
                    f"{path}: {state}, expected {size} bytes: the encodings are damaged; {remedy}"
                )
        views = {
            view: Packed(
                _mapped(directory / f"{view}.places", PLACE, width) if width else _NO_PLACES,
                np.load(directory / f"{view}.starts.npy", allow_pickle=False),
            )
            for view, width in description["views"].items()
        }
        towers = {
            tower: StoredTower([
                torch.from_numpy(_mapped(directory / f"{tower}.{depth}", NUMBER, size))
                for depth, size in enumerate(sizes)
            ])
            for tower, sizes in description["towers"].items()
        }  # fmt: skip
        keys, rows = (
            np.load(directory / f"{name}.npy", allow_pickle=False) for name in ("keys", "rows")
        )
        return cls(directory, keys, rows, views, towers)

    def find(self, texts: Sequence[str], urls: Sequence[str]) -> Ids:
        """The number of each of N posts [N], -1 for those that are not there."""
        if not len(self.keys) or not len(texts):
            return np.full(len(texts), -1, dtype=np.int64)
        wanted = keys_of(texts, urls)
        # Two keys that share their first half are never both found, and so nothing is confused.
        places = np.searchsorted(self.keys[:, 0], wanted[:, 0]).clip(max=len(self.keys) - 1)
        found = (self.keys[places] == wanted).all(axis=1)
        return np.where(found, self.rows[places], -1)


def _describe(directory: Path, remedy: str) -> dict[str, Any]:
    path = directory / DESCRIPTION
    try:
        description = json.loads(path.read_text(encoding="utf-8"))
        missing = {"format", "version", "checkpoint", "files", "views", "towers"} - set(description)
    except (OSError, ValueError, TypeError) as error:
        raise RerankerError(
            f"{path}: found no description of encodings ({error}); {remedy}"
        ) from None
    if missing:
        raise RerankerError(f"{path}: found no {', '.join(sorted(missing))}; {remedy}")
    found: dict[str, Any] = description
    return found


def _mapped(path: Path, kind: np.dtype[Any], columns: int) -> npt.NDArray[Any]:
    """A file of numbers as [N, columns]; pages are read when they are asked for."""
    if not path.stat().st_size:
        return np.zeros((0, columns), dtype=kind)
    # Copy-on-write, for PyTorch has no arrays that are read-only; nothing writes into it.
    return np.memmap(path, dtype=kind, mode="c").reshape(-1, columns)
