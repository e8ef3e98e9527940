"""Exact search for the nearest vectors by inner product (FAISS), on the GPU if FAISS has one.

An index is a folder: ``vectors.faiss``, ``ids.json`` with the id of each vector, and ``dense.json``
with their number and size, the fingerprint of their origin, and the checksums of both files.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from indexes.errors import CollectionError
from indexes.files import atomic_directory, sha256_of
from indexes.manifest import check_replaceable, unusable

FORMAT = 1
"""Version of the folder's layout, raised when older indexes can no longer be read."""

MANIFEST, VECTORS, IDS = "dense.json", "vectors.faiss", "ids.json"

GPU_HITS = 2048
"""Most hits of a search by FAISS on a GPU; searches for more run on the CPU."""

Vectors = npt.NDArray[np.float32]


class DenseIndex:
    """Vectors with ids, open for searching; made by :meth:`build` or :meth:`open`.

    The fingerprint names the vectors' origin (texts and model); others cannot be compared with
    them.
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
            CollectionError: there is no vector, a number is not finite, an id is repeated, or
                FAISS is not installed.
        """
        if len(ids) != len(vectors):
            raise ValueError(f"found {len(ids)} ids, expected one for each of {len(vectors)}")
        if not len(ids):
            raise CollectionError("found no vector to index, expected at least one")
        if len(set(ids)) != len(ids):
            repeated = next(name for place, name in enumerate(ids) if name in ids[:place])
            raise CollectionError(f"found the id {repeated!r} twice, expected every id once")
        if not np.isfinite(vectors).all():
            raise CollectionError(
                "found vectors with numbers that are not finite, expected none: their model is "
                "damaged, or its training diverged"
            )
        index = _faiss().IndexFlatIP(vectors.shape[1])
        index.add(np.ascontiguousarray(vectors, dtype=np.float32))
        return cls(index, ids, fingerprint)

    def save(self, directory: Path | str, rebuild: str) -> None:
        """Write the index into a folder, atomically, with the command that builds it again.

        Raises:
            CollectionError: the folder is not empty and no index of vectors.
        """
        directory = Path(directory)
        check_replaceable(directory, MANIFEST)
        with atomic_directory(directory) as folder:
            # Written by Python, as FAISS does not report why it cannot write.
            (folder / VECTORS).write_bytes(_faiss().serialize_index(self._index).tobytes())
            (folder / IDS).write_text(json.dumps(self.ids, ensure_ascii=False), encoding="utf-8")
            fields = {
                "format": FORMAT,
                "size": len(self.ids),
                "dimension": self.dimension,
                "fingerprint": self.fingerprint,
                "sha256": {name: sha256_of(folder / name) for name in (VECTORS, IDS)},
                "rebuild": rebuild,
            }
            text = json.dumps(fields, indent=2, ensure_ascii=False)
            (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")

    @classmethod
    def open(cls, directory: Path | str, fingerprint: str | None = None) -> Self:
        """Read an index and, if given, check its fingerprint.

        Raises:
            CollectionError: the folder is missing, damaged or of another version, or the
                fingerprint differs (the message has the command that rebuilds); or FAISS is not
                installed.
        """
        directory = Path(directory)
        faiss = _faiss()
        fields = _read_manifest(directory)
        rebuild = fields["rebuild"]
        for name in (VECTORS, IDS):
            if not (directory / name).is_file():
                raise unusable(directory, f"its file {name} is missing", rebuild)
            if sha256_of(directory / name) != fields["sha256"][name]:
                raise unusable(directory, f"its file {name} is damaged", rebuild)
        if fingerprint is not None and fields["fingerprint"] != fingerprint:
            raise unusable(
                directory, "its vectors are of other texts or by another checkpoint", rebuild
            )
        try:
            index = faiss.deserialize_index(np.fromfile(directory / VECTORS, dtype=np.uint8))
            ids = json.loads((directory / IDS).read_text(encoding="utf-8"))
        except (RuntimeError, ValueError) as error:
            raise unusable(directory, f"it cannot be read ({error})", rebuild) from None
        size, dimension = fields["size"], fields["dimension"]
        if (index.ntotal, len(ids), index.d) != (size, size, dimension):
            problem = (
                f"found {index.ntotal} vectors of {index.d} numbers and {len(ids)} ids, "
                f"expected {size} of {dimension}"
            )
            raise unusable(directory, problem, rebuild)
        return cls(index, ids, fields["fingerprint"])

    def search(self, vectors: Vectors, hits: int) -> tuple[list[list[str]], Vectors]:
        """The indexed vectors with the highest inner product with each of ``vectors`` [Q, E].

        Returns:
            Ids and inner products, best first: Q lists of H ids, and [Q, H], where H is ``hits``
            or, if lower, the number of vectors.
        """
        if vectors.ndim != 2 or vectors.shape[1] != self.dimension:
            raise ValueError(f"found vectors {vectors.shape}, expected [Q, {self.dimension}]")
        hits = min(hits, len(self.ids))
        if not len(vectors):
            return [], np.zeros((0, hits), dtype=np.float32)
        index = self._index if hits > GPU_HITS else self._fast
        scores, places = index.search(np.ascontiguousarray(vectors, dtype=np.float32), hits)
        return [[self.ids[place] for place in row] for row in places.tolist()], scores


def _faiss() -> Any:
    """The module, which comes in two builds and is therefore an optional dependency."""
    try:
        import faiss
    except ImportError as error:
        raise CollectionError(
            f"found no FAISS ({error}), which searches vectors; install it by\n"
            "  pip install 'tweetrerank[cpu]'\n"
            "or, for NVIDIA GPUs, by\n"
            "  pip install 'tweetrerank[gpu]'"
        ) from None
    return faiss


def _read_manifest(directory: Path) -> dict[str, Any]:
    path = directory / MANIFEST
    if not path.is_file():
        found = "a folder that is not one" if directory.is_dir() else "no such folder"
        raise CollectionError(f"{directory}: found {found}, expected an index of vectors; build it")
    try:
        fields: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        found_format, files = fields["format"], fields["sha256"].keys()
        complete = {"size", "dimension", "fingerprint", "rebuild"} <= fields.keys()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CollectionError(
            f"{path}: not a readable description of an index ({type(error).__name__}: {error}); "
            f"remove {directory} and build it again"
        ) from None
    if found_format != FORMAT or not complete or not {VECTORS, IDS} <= files:
        rebuild = fields.get("rebuild", "the command that built it")
        raise unusable(directory, f"it has format {found_format}, expected {FORMAT}", rebuild)
    return fields
