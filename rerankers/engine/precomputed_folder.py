"""Folders of what has been computed of posts beforehand, for one checkpoint.

``precomputed.json``            which checkpoint made them, and how large every file is
``keys.npy``, ``rows.npy``    a hash of each text and URL, ascending, and the number of the post

Posts are found by what they say, not by an id: one that is not there, or that has changed, is
read when it is scored.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rerankers.base import Pairs
from rerankers.errors import RerankerError

FORMAT = 1
"""Of the files, and of how texts are read: where either changes, what is stored is of no use."""
DESCRIPTION = "precomputed.json"

_DESCRIBED = {"format", "version", "checkpoint", "files"}
_PARTS = ("config.json", "model.safetensors", "vocabulary.json")
"""Files of a checkpoint on which what is stored depends."""


def version_of(checkpoint: Path) -> str:
    """A hash of everything that is stored for a checkpoint depends on.

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
    # Half a surrogate pair is no character, but it is in some posts.
    digests = [
        hashlib.blake2b(f"{text}\0{url}".encode(errors="surrogatepass"), digest_size=16).digest()
        for text, url in zip(texts, urls, strict=True)
    ]
    return np.frombuffer(b"".join(digests), dtype="<u8").reshape(-1, 2)


def keys_of_posts(pairs: Pairs) -> npt.NDArray[np.uint64]:
    """:func:`keys_of` the posts of pairs, computed once: [D, 2]."""
    texts, urls, found = pairs.memo.get("keys", (None, None, None))
    # Pairs that were given other posts by dataclasses.replace have the memo of those before.
    if texts is not pairs.texts or urls is not pairs.urls:
        found = keys_of(pairs.texts, pairs.urls)
        pairs.memo["keys"] = pairs.texts, pairs.urls, found
    keys: npt.NDArray[np.uint64] = found
    return keys


@dataclass(frozen=True)
class Keys:
    """The posts of a folder.

    Attributes:
        keys: [N, 2] of the posts, ascending; see :func:`keys_of`.
        rows: [N] number of each.
    """

    keys: npt.NDArray[np.uint64]
    rows: npt.NDArray[np.int64]

    @classmethod
    def load(cls, directory: Path) -> "Keys":
        """Read them from their folder."""
        return cls(*(np.load(directory / f"{n}.npy", allow_pickle=False) for n in ("keys", "rows")))

    def __len__(self) -> int:
        return len(self.keys)

    def find(self, wanted: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        """The numbers [N] of posts by their keys [N, 2], -1 for those that are not there."""
        if not len(self.keys) or not len(wanted):
            return np.full(len(wanted), -1, dtype=np.int64)
        # Two keys that share their first half are never both found, and so nothing is confused.
        places = np.searchsorted(self.keys[:, 0], wanted[:, 0]).clip(max=len(self.keys) - 1)
        found = (self.keys[places] == wanted).all(axis=1)
        return np.where(found, self.rows[places], -1)


def describe(
    directory: Path, version: str, remedy: str, described: Iterable[str] = ()
) -> dict[str, Any]:
    """The description of a folder, all of whose files are there.

    Args:
        directory: the folder.
        version: what :func:`version_of` says of the checkpoint in use.
        remedy: how to make the folder again, for messages.
        described: what the description must have besides.

    Raises:
        RerankerError: it is no such folder, or of another checkpoint or format, or damaged.
    """
    description = _read(directory / DESCRIPTION, remedy, _DESCRIBED | set(described))
    if description["format"] != FORMAT or description["version"] != version:
        raise RerankerError(
            f"{directory}: found posts precomputed by the checkpoint {description['checkpoint']} as "
            f"it was ({str(description['version'])[:12]}), expected those of the one in use "
            f"({version[:12]}); {remedy}"
        )
    for name, size in description["files"].items():
        path = directory / name
        found = path.stat().st_size if path.is_file() else None
        if found != size:
            state = "is missing" if found is None else f"has {found} bytes"
            raise RerankerError(
                f"{path}: {state}, expected {size} bytes: the precomputed posts are damaged; "
                f"{remedy}"
            )
    return description


def _read(path: Path, remedy: str, described: set[str]) -> dict[str, Any]:
    try:
        description = json.loads(path.read_text(encoding="utf-8"))
        missing = described - set(description)
    except (OSError, ValueError, TypeError) as error:
        raise RerankerError(
            f"{path}: found no description of precomputed posts ({error}); {remedy}"
        ) from None
    if missing:
        raise RerankerError(f"{path}: found no {', '.join(sorted(missing))}; {remedy}")
    found: dict[str, Any] = description
    return found
