"""Posts to what is known of them on disk, for one checkpoint.

Vectors (:mod:`rerankers.engine.precomputed_vectors`), or for a model over features the posts as they are read
(:mod:`rerankers.engine.precomputed_posts`).
"""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from rerankers.base import Reranker
from rerankers.checkpoint import TrainedReranker, require_empty
from rerankers.engine import fast_paths, precomputed_posts
from rerankers.engine.precomputed_folder import DESCRIPTION, FORMAT, keys_of, version_of
from rerankers.engine.precomputed_posts import PrecomputedPosts
from rerankers.engine.precomputed_vectors import NUMBER, PLACE, PrecomputedVectors
from rerankers.engine.towers import TabulatedTower, TowerInput
from rerankers.engine.windows import Ids
from rerankers.errors import RerankerError
from rerankers.text.inputs import TokenIds
from rerankers.text.ragged import Ragged

BLOCK = 4096
"""Posts whose windows are told apart from one another; more would take more memory."""


def precompute(
    directory: Path,
    checkpoint: TrainedReranker,
    texts: Sequence[str],
    urls: Sequence[str],
    progress: Callable[[int], None] = lambda posts_done: None,
) -> int:
    """Write what is known of posts.

    Args:
        directory: the folder to write, empty or missing.
        checkpoint: on the CPU, of a model that has a way to use them.
        texts: [N] posts; those that are alike are written once.
        urls: [N] expanded URL of each, or "".
        progress: called with the number of posts of each finished block.

    Returns:
        Bytes written.

    Raises:
        RerankerError: the model has no use for precomputed posts, or the folder is not empty or
            cannot be written.
    """
    write = _writer_of(checkpoint)
    if reads_features_alone(checkpoint.model):
        # A fusion's candidates of runs whose texts are not known have none.
        texts, urls = [*texts, ""], [*urls, ""]
    keys, first = np.unique(keys_of(texts, urls), axis=0, return_index=True)
    kept = np.sort(first)  # In the order of the collection, in which retweets are neighbours.
    try:
        directory.mkdir(parents=True, exist_ok=True)
        require_empty(directory)
        np.save(directory / "keys.npy", keys, allow_pickle=False)
        np.save(directory / "rows.npy", np.searchsorted(kept, first), allow_pickle=False)
        distinct = [texts[i] for i in kept], [urls[i] for i in kept]
        return _finish(directory, checkpoint, write(directory, *distinct, progress))
    except OSError as error:
        raise RerankerError(f"{directory}: cannot be written ({error})") from None


def open_precomputed(
    directory: Path, checkpoint: TrainedReranker, remedy: str
) -> PrecomputedVectors | PrecomputedPosts:
    """What :func:`precompute` wrote for a checkpoint; see :meth:`PrecomputedVectors.open`.

    Raises:
        RerankerError: it is no such folder, or of another checkpoint or format, or damaged.
    """
    kind = PrecomputedPosts if reads_features_alone(checkpoint.model) else PrecomputedVectors
    return kind.open(directory, version_of(checkpoint.directory), remedy)


def reads_features_alone(model: Reranker) -> bool:
    """Whether a model sees of posts what its families of features say."""
    return bool(model.feature_families) and not model.post_inputs


def has_use(model: Reranker) -> bool:
    """Whether a model has use for posts that are encoded."""
    return reads_features_alone(model) or fast_paths.can_encode(fast_paths.way_of(model))


Write = Callable[[Path, Sequence[str], Sequence[str], Callable[[int], None]], dict[str, Any]]
"""Folder, distinct texts and their URLs, progress -> what is to be in the description."""


def _writer_of(checkpoint: TrainedReranker) -> Write:
    """How the posts of a checkpoint's model are written."""
    model, encoder = checkpoint.model, checkpoint.encoder
    if reads_features_alone(model):

        def write_read(
            directory: Path, texts: Sequence[str], urls: Sequence[str],
            progress: Callable[[int], None],
        ) -> dict[str, Any]:  # fmt: skip
            return precomputed_posts.write(
                directory, texts, urls, encoder.idf, model.unit_vectors(), progress
            )

        return write_read
    if not has_use(model):
        raise RerankerError(
            f"{checkpoint.directory}: found a model {checkpoint.name}, expected one whose posts "
            f"take long to encode ({', '.join(fast_paths.encodable())}) or one over features alone; "
            "the others have no use for precomputed posts"
        )
    way = fast_paths.way_of(model)

    def write_vectors(
        directory: Path, texts: Sequence[str], urls: Sequence[str], progress: Callable[[int], None]
    ) -> dict[str, Any]:
        packed = encoder.posts(texts, urls, model.post_inputs)
        with torch.inference_mode():
            vectors = way.PostVectors(model, packed[way.VECTOR_INPUT])
            _write_texts(directory, packed, way.VECTOR_INPUT, vectors.vectors, progress)
        # Of the view that has become a vector, the lengths are left.
        inputs = {view: int(view != way.VECTOR_INPUT) for view in model.post_inputs}
        return {"inputs": inputs, "towers": {way.VECTOR_INPUT: [vectors.size]}}

    def write_towers(
        directory: Path, texts: Sequence[str], urls: Sequence[str], progress: Callable[[int], None]
    ) -> dict[str, Any]:
        packed = encoder.posts(texts, urls, model.post_inputs)
        tower_inputs: dict[str, TowerInput] = way.tower_inputs(model)
        with torch.inference_mode():
            towers: dict[str, TabulatedTower] = way.towers(model, packed)
            _write_views(directory, packed, tower_inputs, towers, progress)
        # A view that no tower reads has lengths only.
        inputs = {
            view: len(towers[tower_inputs[view].tower].sizes) if view in tower_inputs else 0
            for view in model.post_inputs
        }
        return {"inputs": inputs, "towers": {name: tower.sizes for name, tower in towers.items()}}

    return write_vectors if hasattr(way, "PostVectors") else write_towers


def _write_texts(
    directory: Path, packed: Mapping[str, TokenIds], vector_input: str,
    vectors_of: Callable[[Ids], Tensor], progress: Callable[[int], None],
) -> None:  # fmt: skip
    """A vector for every text of one view, and the other inputs' terms as they are."""
    for view, texts in packed.items():
        np.save(directory / f"{view}.starts.npy", texts.starts, allow_pickle=False)
        if view != vector_input:
            texts.values.astype(PLACE, copy=False).tofile(directory / f"{view}.places")
    count = len(packed[vector_input].lengths)
    with (directory / f"{vector_input}.0").open("wb") as stream:
        for start in range(0, count, BLOCK):
            rows = np.arange(start, min(start + BLOCK, count))
            vectors_of(rows).numpy().astype(NUMBER, copy=False).tofile(stream)
            progress(len(rows))


def _write_views(
    directory: Path, packed: Mapping[str, TokenIds], tower_inputs: Mapping[str, TowerInput],
    towers: Mapping[str, TabulatedTower], progress: Callable[[int], None],
) -> None:  # fmt: skip
    """Every text of every view by its windows, and the windows' vectors."""
    for view, texts in packed.items():
        lengths = texts.lengths
        if view in tower_inputs:
            lengths = np.minimum(lengths, tower_inputs[view].longest)
        starts = np.concatenate([[0], np.cumsum(lengths)])
        np.save(directory / f"{view}.starts.npy", starts, allow_pickle=False)
    with ExitStack() as files:

        def create(name: str) -> IO[bytes]:
            return files.enter_context((directory / name).open("wb"))

        writers = {
            name: _TowerWriter(tower, [create(f"{name}.{n}") for n in range(len(tower.sizes))])
            for name, tower in towers.items()
        }
        places = {view: create(f"{view}.places") for view in tower_inputs}
        count = len(next(iter(packed.values())).lengths)
        for start in range(0, count, BLOCK):
            rows = np.arange(start, min(start + BLOCK, count))
            for view, (tower, longest) in tower_inputs.items():
                writers[tower].write(packed[view].take(rows, longest), places[view])
            progress(len(rows))


class _TowerWriter:
    """Appends the distinct windows of blocks of texts to one file a depth.

    Args:
        tower: gives the vectors.
        files: of every depth.
    """

    def __init__(self, tower: TabulatedTower, files: Sequence[IO[bytes]]) -> None:
        self.tower, self.files = tower, files
        self.written = [0] * len(files)
        self._append(0, tower.terms)

    def write(self, texts: Ragged, places: IO[bytes]) -> None:
        """Write the windows of texts, and which of them each place has."""
        before = [0, *self.written[1:]]
        found = self.tower.walk(texts, self._append_comparable)
        if max(self.written) > np.iinfo(PLACE).max:
            raise RerankerError(
                f"found more than {np.iinfo(PLACE).max:,} distinct windows, expected fewer; encode "
                "the collection in parts"
            )
        table = [which + shift for which, shift in zip(found, before, strict=True)]
        np.stack(table, axis=1).astype(PLACE).tofile(places)

    def _append_comparable(self, depth: int, vectors: Tensor) -> None:
        self._append(depth, vectors * self.tower.scale(vectors))

    def _append(self, depth: int, vectors: Tensor) -> None:
        vectors.numpy().astype(NUMBER, copy=False).tofile(self.files[depth])
        self.written[depth] += len(vectors)


def _finish(directory: Path, checkpoint: TrainedReranker, described: Mapping[str, Any]) -> int:
    """Describe what has been written, and have it all on the disk: its size in bytes."""
    files = {path.name: path.stat().st_size for path in sorted(directory.iterdir())}
    description = {
        "format": FORMAT, "version": version_of(checkpoint.directory),
        "checkpoint": "/".join(checkpoint.directory.resolve().parts[-2:]),
        **described, "files": files,
    }  # fmt: skip
    text = json.dumps(description, indent=2, ensure_ascii=False)
    (directory / DESCRIPTION).write_text(text + "\n", encoding="utf-8")
    return sum(files.values())
