"""Vectors on disk, and the nearest of them by inner product (FAISS).

An index is a folder: ``vectors.faiss``, ``ids.json`` with the id of each vector, and ``dense.json``
with their number and size, what made the vectors, and the checksums of the other two. The search
is exact: it compares with every vector, on the GPU if FAISS has one.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from indexes.errors import CollectionError
from indexes.files import atomic_directory

FORMAT = 1
"""Raised whenever an index of the former layout can no longer be read."""

MANIFEST, VECTORS, IDS = "dense.json", "vectors.faiss", "ids.json"

GPU_HITS = 2048
"""FAISS finds at most so many on a GPU; more are searched for on the CPU."""

Vectors = npt.NDArray[np.float32]


class DenseIndex:
    """Vectors with ids, open for searching; made by :meth:`build` or :meth:`open`.

    Attributes:
        ids: [N] id of each vector.
        dimension: E, numbers in a vector.
        fingerprint: names what made the vectors and from what; another one's vectors do not
            compare with these.
    """

    def __init__(self, index: Any, ids: Sequence[str], fingerprint: str) -> None:
        faiss = _faiss()
        self.ids = list(ids)
        self.dimension = int(index.d)
        self.fingerprint = fingerprint
        self._index = index
        on_gpu = getattr(faiss, "get_num_gpus", lambda: 0)() > 0
        self._fast = faiss.index_cpu_to_all_gpus(index) if on_gpu else index

    @classmethod
    def build(cls, vectors: Vectors, ids: Sequence[str], fingerprint: str) -> Self:
        """Index ``vectors`` [N, E] under their N ids.

        Raises:
            CollectionError: there is no vector, a number is not finite, an id comes twice, or
                FAISS is not installed.
        """
        if len(ids) != len(vectors):
            raise ValueError(f"found {len(ids)} ids, expected one for each of {len(vectors)}")
        if not len(ids):
            raise CollectionError("found no vector to index, expected at least one")
        if len(set(ids)) != len(ids):
            twice = next(name for place, name in enumerate(ids) if name in ids[:place])
            raise CollectionError(f"found the id {twice!r} twice, expected every id once")
        if not np.isfinite(vectors).all():
            raise CollectionError(
                "found vectors with numbers that are not finite, expected none: what made them "
                "is damaged, or its training diverged"
            )
        index = _faiss().IndexFlatIP(vectors.shape[1])
        index.add(_contiguous(vectors))
        return cls(index, ids, fingerprint)

    def save(self, directory: Path | str, rebuild: str) -> None:
        """Write the index into a folder, which appears whole or not at all.

        Args:
            directory: an index that is there is replaced, anything else is not.
            rebuild: the command that builds this index, for messages about it.

        Raises:
            CollectionError: the folder is something else.
        """
        directory = Path(directory)
        _refuse_foreign(directory)
        with atomic_directory(directory) as folder:
            # Bytes written by Python, as FAISS does not say why it cannot write.
            (folder / VECTORS).write_bytes(_faiss().serialize_index(self._index).tobytes())
            (folder / IDS).write_text(json.dumps(self.ids, ensure_ascii=False), encoding="utf-8")
            fields = {
                "format": FORMAT,
                "size": len(self.ids),
                "dimension": self.dimension,
                "fingerprint": self.fingerprint,
                "sha256": {name: _sha256(folder / name) for name in (VECTORS, IDS)},
                "rebuild": rebuild,
            }
            text = json.dumps(fields, indent=2, ensure_ascii=False)
            (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")

    @classmethod
    def open(cls, directory: Path | str, fingerprint: str | None = None) -> Self:
        """Read an index; with ``fingerprint``, also check that it is of these vectors.

        Raises:
            CollectionError: there is no index, it is damaged, of another version or of other
                vectors; the message says how to build it again. Or FAISS is not installed.
        """
        directory = Path(directory)
        faiss = _faiss()
        fields = _read_manifest(directory)
        for name in (VECTORS, IDS):
            path = directory / name
            if not path.is_file():
                raise _unusable(directory, fields, f"its file {name} is missing")
            if _sha256(path) != fields["sha256"][name]:
                raise _unusable(directory, fields, f"its file {name} is damaged")
        if fingerprint is not None and fields["fingerprint"] != fingerprint:
            raise _unusable(
                directory, fields,
                "its vectors are of other texts, or another checkpoint made them",
            )  # fmt: skip
        try:
            index = faiss.deserialize_index(np.fromfile(directory / VECTORS, dtype=np.uint8))
            ids = json.loads((directory / IDS).read_text(encoding="utf-8"))
        except (RuntimeError, ValueError) as error:
            raise _unusable(directory, fields, f"it cannot be read ({error})") from None
        found, expected = (index.ntotal, len(ids), index.d), (fields["size"], fields["dimension"])
        if found != (expected[0], *expected):
            raise _unusable(
                directory, fields,
                f"found {found[0]} vectors of {found[2]} numbers and {found[1]} ids, "
                f"expected {expected[0]} of {expected[1]}",
            )  # fmt: skip
        return cls(index, ids, fields["fingerprint"])

    def search(self, vectors: Vectors, hits: int) -> tuple[list[list[str]], Vectors]:
        """The vectors with the highest inner product with each of ``vectors`` [Q, E].

        Returns:
            Ids and inner products, best first: Q lists of H ids, and [Q, H], where H is ``hits``
            or, if there are fewer, the number of vectors.
        """
        if vectors.ndim != 2 or vectors.shape[1] != self.dimension:
            raise ValueError(f"found vectors {vectors.shape}, expected [Q, {self.dimension}]")
        hits = min(hits, len(self.ids))
        if not len(vectors):
            return [], np.zeros((0, hits), dtype=np.float32)
        index = self._index if hits > GPU_HITS else self._fast
        scores, places = index.search(_contiguous(vectors), hits)
        return [[self.ids[place] for place in row] for row in places.tolist()], scores


def _faiss() -> Any:
    """The package, which comes in two builds, so that nobody gets one without asking for it."""
    try:
        import faiss
    except ImportError as error:
        raise CollectionError(
            f"found no FAISS ({error}), which searches vectors; install it by\n"
            "  pip install 'tweetrerank[cpu]'\n"
            "or, where there is an NVIDIA GPU, by\n"
            "  pip install 'tweetrerank[gpu]'"
        ) from None
    return faiss


def _contiguous(vectors: Vectors) -> Vectors:
    return np.ascontiguousarray(vectors, dtype=np.float32)


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _read_manifest(directory: Path) -> dict[str, Any]:
    path = directory / MANIFEST
    if not path.is_file():
        found = "a folder that is not one" if directory.is_dir() else "no such folder"
        raise CollectionError(f"{directory}: found {found}, expected an index of vectors; build it")
    try:
        fields: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        found_format, kinds = fields["format"], fields["sha256"].keys()
        complete = {"size", "dimension", "fingerprint", "rebuild"} <= fields.keys()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CollectionError(
            f"{path}: not a readable description of an index ({type(error).__name__}: {error}); "
            f"remove {directory} and build it again"
        ) from None
    if found_format != FORMAT or not complete or not {VECTORS, IDS} <= kinds:
        raise _unusable(directory, fields, f"it has format {found_format}, expected {FORMAT}")
    return fields


def _unusable(directory: Path, fields: dict[str, Any], problem: str) -> CollectionError:
    return CollectionError(
        f"{directory}: this index cannot be used: {problem}; "
        f"build it again with\n  {fields.get('rebuild', 'the command that built it')}"
    )


def _refuse_foreign(directory: Path) -> None:
    """Raise CollectionError if replacing the folder would destroy something else."""
    if not directory.exists() or (directory / MANIFEST).is_file():
        return
    if directory.is_dir() and not any(directory.iterdir()):
        return
    found = "a folder of something else" if directory.is_dir() else "a file"
    raise CollectionError(
        f"{directory}: found {found}, expected an index of vectors or nothing; it is left as it "
        "is: remove it or choose another folder"
    )
