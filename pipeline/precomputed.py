"""Posts precomputed for an index: one folder for each checkpoint, inside the index's folder."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from indexes.files import atomic_directory
from pipeline.command.errors import DataError

if TYPE_CHECKING:
    from indexes.posts import Post
    from pipeline.reranking import NeuralReranker

FOLDER = "precomputed"
"""In an index: folders named after the checkpoint's version."""


class Written(NamedTuple):
    """A folder, its size in bytes, and the seconds that it took."""

    directory: Path
    size: int
    seconds: float


def write(index: Path, checkpoint: Path) -> list[Written]:
    """Precompute the posts of an index for a checkpoint and the rerankers whose scores it reads.

    Raises:
        CollectionError: there is no index, or it is damaged.
        RerankerError: there is no checkpoint, or precomputed posts are of no use to its model.
    """
    from indexes.manifest import Manifest
    from indexes.store import POSTS_FILE, PostStore
    from pipeline.command.runtime import bar
    from rerankers import checkpoint as checkpoints
    from rerankers.engine.precomputed import can_precompute, precompute

    manifest = Manifest.read(index)
    manifest.check(index, None)
    loaded = [checkpoints.load(checkpoint)]
    parts = map(checkpoints.load, checkpoints.parts_of(checkpoint))
    loaded += [part for part in parts if can_precompute(part.model)]
    with PostStore(index / POSTS_FILE) as store:
        posts = [(post.text, post.url) for post in store]
    written = []
    with bar(len(loaded) * len(posts), "precomputing", "post") as progress:
        for each in loaded:
            directory, started = _directory(index, each.directory), time.perf_counter()
            with atomic_directory(directory) as new:
                size = precompute(each, posts, new, progress)
            written.append(Written(directory, size, time.perf_counter() - started))
    return written


def with_precomputed(
    reranker: NeuralReranker, given: str | None, index: Path | None
) -> NeuralReranker:
    """The reranker with its precomputed posts, if there are any.

    Args:
        reranker: to be used.
        given: folder of precomputed posts, ``none``, or None for the index's own.
        index: folder of the index, None if there is none.

    Raises:
        DataError: the given folder is missing.
        RerankerError: the folder is damaged, or belongs to another checkpoint.
    """
    from rerankers.engine.precomputed import open_precomputed

    checkpoint = reranker.checkpoint
    words = ["--index", str(index or "INDEX"), "--precompute", str(checkpoint.directory)]
    remedy = f"make it again by\n  python -m pipeline.index {shlex.join(words)}"
    if given not in (None, "none") and not Path(given).is_dir():
        raise DataError(f"--precomputed {given}: found no such folder; {remedy}")
    if given is None and index is not None:
        own = _directory(index, checkpoint.directory)
        given = str(own) if own.is_dir() else None
    if given in (None, "none"):
        return reranker
    found = open_precomputed(checkpoint, Path(given), remedy)
    return replace(reranker, checkpoint=replace(checkpoint, precomputed=found))


def precomputed_for(
    reranker: NeuralReranker, posts: Sequence[Post], directory: Path
) -> NeuralReranker:
    """The reranker with posts precomputed into a new folder, if they make it faster.

    Raises:
        RerankerError: the folder cannot be written.
    """
    from rerankers.engine.precomputed import can_precompute, open_precomputed, precompute

    checkpoint = reranker.checkpoint
    if not can_precompute(checkpoint.model):
        return reranker
    precompute(checkpoint, [(post.text, post.url) for post in posts], directory)
    found = open_precomputed(checkpoint, directory, "precompute them again")
    return replace(reranker, checkpoint=replace(checkpoint, precomputed=found))


def _directory(index: Path, checkpoint: Path) -> Path:
    from rerankers.engine.precomputed import version_of

    return index / FOLDER / version_of(checkpoint)[:16]
