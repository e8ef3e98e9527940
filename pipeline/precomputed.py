"""What is computed of an index's posts beforehand: where it lies, how it is made and found."""

import shlex
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pipeline.command.errors import DataError

if TYPE_CHECKING:
    from indexes.posts import Post
    from pipeline.reranking import NeuralReranker

FOLDER = "precomputed"
"""In an index: a folder for each checkpoint, named by what its vectors depend on."""


class Written(NamedTuple):
    """A folder, its size in bytes, and how long it took to write."""

    directory: Path
    size: int
    seconds: float


def write(index: Path, checkpoint: Path) -> list[Written]:
    """Encode the posts of an index, also for models whose scores the checkpoint's model reads.

    Raises:
        CollectionError: there is no index, or it is damaged.
        RerankerError: there is no checkpoint, or its model has no use for precomputed posts.
    """
    from indexes.files import atomic_directory
    from indexes.manifest import Manifest
    from indexes.store import POSTS_FILE, PostStore
    from pipeline.command.runtime import bar
    from rerankers import checkpoint as checkpoints
    from rerankers.engine.precompute import has_use, precompute

    manifest = Manifest.read(index)
    manifest.check(index, None)
    loaded = [checkpoints.load(checkpoint)]
    parts = map(checkpoints.load, checkpoints.parts_of(checkpoint))
    loaded += [part for part in parts if has_use(part.model)]
    with PostStore(index / POSTS_FILE) as store:
        posts = list(store)
    texts, urls = [post.text for post in posts], [post.url for post in posts]
    written = []
    with bar(len(loaded) * len(posts), "encoding", "post") as progress:
        for each in loaded:
            directory, started = _directory(index, each.directory), time.perf_counter()
            with atomic_directory(directory) as new:
                size = precompute(new, each, texts, urls, progress)
            written.append(Written(directory, size, time.perf_counter() - started))
    return written


def with_precomputed(
    reranker: "NeuralReranker", given: str | None, index: Path | None
) -> "NeuralReranker":
    """The reranker, and what has been encoded for it.

    Args:
        reranker: that is to be used.
        given: a folder, ``none``, or None for the index's own if it has some by this checkpoint.
        index: folder of the index, None if there is none.

    Raises:
        DataError: the folder is not there.
        RerankerError: it is damaged, or of another checkpoint.
    """
    from rerankers.engine.precompute import open_precomputed

    checkpoint = reranker.checkpoint.directory
    remedy = f"make them again by\n  {_command(index, checkpoint)}"
    if given is not None and given != "none" and not Path(given).is_dir():
        raise DataError(f"--precomputed {given}: there is no such folder; {remedy}")
    directory = _directory(index, checkpoint) if given is None and index else Path(given or "none")
    if given == "none" or not directory.is_dir():
        return reranker
    found = open_precomputed(directory, reranker.checkpoint, remedy)
    return replace(reranker, checkpoint=replace(reranker.checkpoint, precomputed=found))


def precomputed_for(
    reranker: "NeuralReranker", posts: "Sequence[Post]", directory: Path
) -> "NeuralReranker":
    """The reranker, and what it knows of posts in a folder that is written; itself if no use.

    Raises:
        RerankerError: the folder cannot be written.
    """
    from rerankers.engine.precompute import has_use, open_precomputed, precompute

    checkpoint = reranker.checkpoint
    if not has_use(checkpoint.model):
        return reranker
    precompute(directory, checkpoint, [post.text for post in posts], [post.url for post in posts])
    found = open_precomputed(directory, checkpoint, "encode them again")
    return replace(reranker, checkpoint=replace(checkpoint, precomputed=found))


def _command(index: Path | None, checkpoint: Path) -> str:
    """The command that encodes an index's posts."""
    words = ["--index", str(index or "INDEX"), "--precompute", str(checkpoint)]
    return f"python -m pipeline.index {shlex.join(words)}"


def _directory(index: Path, checkpoint: Path) -> Path:
    from rerankers.engine.precomputed_folder import version_of

    return index / FOLDER / version_of(checkpoint)[:16]
