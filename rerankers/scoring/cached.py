"""Scores of posts that come again and again: their encodings are kept between calls.

Of the models with a ``PostEncoder`` in their fast path's module; posts of other models are read
each time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any
from weakref import WeakMethod

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rerankers.base import Pairs
from rerankers.scoring import fast_paths
from rerankers.scoring.arena import Arena
from rerankers.scoring.packed import Buffers
from rerankers.scoring.passes import check_finite
from rerankers.scoring.precomputed import keys_of

if TYPE_CHECKING:
    from rerankers.checkpoint import TrainedReranker
    from rerankers.text.ragged import Rows

Key = bytes
"""Hash of a post's text and URL."""

Place = tuple["Block", int]
"""A block, and a post's number there."""

NUMBER = 4
"""Bytes of a float32."""

QUERIES = 256
"""Queries whose vectors are kept, of some tens of kilobytes each."""

BLOCK = 128
"""Posts that are encoded or compared together; their vectors fit the processor's cache."""


@dataclass(eq=False)
class Block:
    """Posts that were encoded together, and are dropped together.

    Attributes:
        keys: of the posts.
        posts: as a ``PostEncoder`` gave them; None while it encodes them.
        bytes: of the memory that was lent for them.
        readers: threads that read or write it.
        is_used: whether a post was found again.
    """

    keys: Sequence[Key]
    posts: Any = None
    bytes: int = 0
    readers: int = 1
    is_used: bool = False


class CachedScorer:
    """Scores pairs by a checkpoint, and keeps the encodings of the posts that were read last.

    Its methods may be called by several threads at once.

    Args:
        checkpoint: on the CPU.
        max_bytes: of the kept encodings and terms.

    Attributes:
        hits: look-ups of a query's post that found it.
        misses: look-ups that did not.
    """

    def __init__(self, checkpoint: TrainedReranker, max_bytes: int) -> None:
        self.checkpoint, self.max_bytes = checkpoint, max_bytes
        self.hits, self.misses = 0, 0
        way = fast_paths.way_of(checkpoint.model)
        has_encoder = hasattr(way, "PostEncoder") and not checkpoint.model.feature_families
        self._encoder: Any = (
            way.PostEncoder(checkpoint.model, checkpoint.encoder) if has_encoder else None
        )
        self._places: dict[Key, Place] = {}
        # Neither refers to self: a cycle would keep the memory of a model that is swapped out.
        encoder: Any = self._encoder
        drop: Any = WeakMethod(self._drop)
        self._query = lru_cache(QUERIES)(lambda text: encoder.query(text))
        self._arena = Arena[Block](max_bytes // NUMBER, lambda block: drop()(block))
        self._block_bytes = 0
        self._lock, self._buffers = Lock(), Buffers()

    @property
    def bytes(self) -> int:
        """Size of the cache now."""
        terms = self._encoder.bytes if self._encoder else 0
        return self._block_bytes + terms

    def warm_up(self) -> None:
        """Do now what would make the first requests slow.

        PyTorch's first use; and the memory of the cache is taken, in a thread of its own.
        """
        rows = np.arange(2)
        self.score(Pairs(["cuts"], ["bbc cuts jobs", "lunch"], ["", ""], rows * 0, rows))
        if self._encoder is not None:
            # Not a daemon: PyTorch aborts if it is cut off within an operation.
            Thread(target=self._arena.touch, name="touch").start()

    def score(self, pairs: Pairs) -> npt.NDArray[np.float32]:
        """Scores [P], as of :meth:`TrainedReranker.score`; they do not depend on the other pairs.

        Raises:
            RerankerError: a score is not a finite number.
        """
        if self._encoder is None:
            self.misses += len(pairs.texts)
            return self.checkpoint.score(pairs)
        scores = np.zeros(len(pairs), dtype=np.float32)
        keys = [key.tobytes() for key in keys_of(pairs.texts, pairs.urls)]
        # Equal posts get equal scores, to the last digit.
        first: dict[Key, int] = {}
        same = np.array([first.setdefault(key, n) for n, key in enumerate(keys)], np.int64)
        post_index = same[pairs.post_index]
        with torch.inference_mode():
            for number, text in enumerate(pairs.queries):
                query = self._query(text)
                rows = np.flatnonzero(pairs.query_index == number)
                posts = np.unique(post_index[rows])
                by_post = np.zeros(len(keys), dtype=np.float32)
                by_post[posts] = self._scores(query, pairs, keys, posts)
                scores[rows] = by_post[post_index[rows]]
        check_finite(scores)
        return scores

    def _scores(
        self, query: Any, pairs: Pairs, keys: Sequence[Key], posts: Rows
    ) -> npt.NDArray[np.float32]:
        """Scores [B] of the distinct ``posts`` [B] of pairs for one query."""
        scores = np.zeros(len(posts), dtype=np.float32)
        wanted = [keys[post] for post in posts.tolist()]
        found = self._find(wanted)
        new = np.array([place is None for place in found], dtype=np.bool_)
        try:
            for rows in _parts(np.flatnonzero(new)):
                texts = [pairs.texts[post] for post in posts[rows].tolist()]
                urls = [pairs.urls[post] for post in posts[rows].tolist()]
                block = Block([wanted[row] for row in rows.tolist()])
                scores[rows] = self._read(query, texts, urls, block)
            for rows in _parts(np.flatnonzero(~new)):
                kept = [place for row in rows.tolist() if (place := found[row])]
                scores[rows] = self._encoder.scores(query, _joined(kept)).numpy()
        finally:
            with self._lock:
                for block in _blocks_of(found):
                    block.readers -= 1
        return scores

    def _find(self, keys: Sequence[Key]) -> list[Place | None]:
        """Block of each post, and its place there; None if it is not here.

        The caller is a reader of these blocks from now on.
        """
        with self._lock:
            found = [self._places.get(key) for key in keys]
            for block in _blocks_of(found):
                block.readers, block.is_used = block.readers + 1, True
            hits = sum(place is not None for place in found)
            self.hits, self.misses = self.hits + hits, self.misses + len(keys) - hits
        return found

    def _read(
        self, query: Any, texts: Sequence[str], urls: Sequence[str], block: Block
    ) -> npt.NDArray[np.float32]:
        """Scores [B] of new posts, which are kept if there is room."""

        def memory(size: int) -> Tensor:
            with self._lock:
                limit = (self.max_bytes - self._encoder.bytes) // NUMBER
                lent = self._arena.lend(block, size, limit)
                if lent is not None:
                    block.bytes = NUMBER * size
                    self._block_bytes += block.bytes
            return self._buffers.rows(0, size, 1).view(-1) if lent is None else lent

        try:
            block.posts, scores = self._encoder.read(query, texts, urls, memory)
            if block.bytes:
                with self._lock:
                    self._places.update((key, (block, n)) for n, key in enumerate(block.keys))
        finally:
            with self._lock:
                block.readers -= 1
        found: npt.NDArray[np.float32] = scores.numpy()
        return found

    def _drop(self, block: Block) -> None:
        """Forget posts, whose memory is lent to others."""
        self._block_bytes -= block.bytes
        for key in block.keys:
            # Another thread may have read the post at the same time.
            if self._places.get(key, (None,))[0] is block:
                del self._places[key]


def _blocks_of(places: Sequence[Place | None]) -> Iterable[Block]:
    """The distinct blocks of the posts that were found."""
    return {place[0]: None for place in places if place}


def _joined(kept: Sequence[Place]) -> Any:
    """The posts at these places; neighbours of a block are taken together, without a copy."""
    runs: list[tuple[Block, int, int]] = []
    for block, place in kept:
        if runs and runs[-1][0] is block and runs[-1][2] == place:
            runs[-1] = block, runs[-1][1], place + 1
        else:
            runs.append((block, place, place + 1))
    parts = [block.posts.part(first, end) for block, first, end in runs]
    return type(parts[0]).joined(parts)


def _parts(rows: Rows) -> list[Rows]:
    """Parts of nearly the same size, each of which fits a block."""
    return np.array_split(rows, -(-len(rows) // BLOCK)) if len(rows) else []
