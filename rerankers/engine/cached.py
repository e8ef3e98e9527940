"""Scores of posts that come again and again: their encodings are kept between calls.

Of the models with a ``PostEncoder`` in their fast path's module; posts of other models are read
each time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from rerankers.engine import fast_paths
from rerankers.engine.precomputed import keys_of
from rerankers.engine.scoring import check_finite

if TYPE_CHECKING:
    from rerankers.base import Pairs
    from rerankers.checkpoint import TrainedReranker
    from rerankers.text.ragged import Rows

Key = bytes
"""Hash of a post's text and URL."""

BLOCK = 128
"""Posts that are encoded or compared together; their vectors fit the processor's cache."""


class Block:
    """Posts that were encoded together, and are dropped together.

    Attributes:
        keys: of the posts.
        posts: as a ``PostEncoder`` gave them.
    """

    def __init__(self, keys: Sequence[Key], posts: Any) -> None:
        self.keys, self.posts = keys, posts


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
        self._places: dict[Key, tuple[Block, int]] = {}
        self._blocks: OrderedDict[Block, None] = OrderedDict()
        self._block_bytes, self._lock = 0, Lock()

    @property
    def bytes(self) -> int:
        """Size of the cache now."""
        return self._block_bytes + (self._encoder.bytes if self._encoder else 0)

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
            for number, query in enumerate(self._encoder.queries(pairs.queries)):
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
        for rows in _parts(np.flatnonzero(new)):
            texts = [pairs.texts[post] for post in posts[rows].tolist()]
            urls = [pairs.urls[post] for post in posts[rows].tolist()]
            encoded, scored = self._encoder.read(query, texts, urls)
            scores[rows] = scored.numpy()
            self._keep(Block([wanted[row] for row in rows.tolist()], encoded))
        for rows in _parts(np.flatnonzero(~new)):
            kept = [place for row in rows.tolist() if (place := found[row])]
            scores[rows] = self._encoder.scores(query, _joined(kept)).numpy()
        return scores

    def _find(self, keys: Sequence[Key]) -> list[tuple[Block, int] | None]:
        """Block of each post, and its place there; None if it is not here."""
        with self._lock:
            found = [self._places.get(key) for key in keys]
            for block in {place[0]: None for place in found if place}:
                if block in self._blocks:
                    self._blocks.move_to_end(block)
            hits = sum(place is not None for place in found)
            self.hits, self.misses = self.hits + hits, self.misses + len(keys) - hits
        return found

    def _keep(self, block: Block) -> None:
        """Keep posts, and drop the blocks of which none was asked for longest."""
        with self._lock:
            self._blocks[block] = None
            self._block_bytes += block.posts.bytes
            self._places.update((key, (block, place)) for place, key in enumerate(block.keys))
            while self._blocks and self.bytes > self.max_bytes:
                oldest, _ = self._blocks.popitem(last=False)
                self._block_bytes -= oldest.posts.bytes
                for key in oldest.keys:
                    # Another thread may have read the post at the same time.
                    if self._places.get(key, (None,))[0] is oldest:
                        del self._places[key]


def _joined(kept: Sequence[tuple[Block, int]]) -> Any:
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
    return [rows[start : start + BLOCK] for start in range(0, len(rows), BLOCK)]
