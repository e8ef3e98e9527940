"""Scores of posts that come again and again: their encodings are kept between calls.

Of the models with a ``PostEncoder`` in their fast path's module; posts of other models are read
each time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
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


class CachedScorer:
    """Scores pairs by a checkpoint, and keeps the encodings of the posts that were read last.

    Its methods may be called by several threads at once.

    Args:
        checkpoint: on the CPU.
        max_bytes: of the kept encodings and terms.

    Attributes:
        hits: posts that were in the cache.
        misses: posts that were not.
    """

    def __init__(self, checkpoint: TrainedReranker, max_bytes: int) -> None:
        self.checkpoint, self.max_bytes = checkpoint, max_bytes
        self.hits, self.misses = 0, 0
        way = fast_paths.way_of(checkpoint.model)
        has_encoder = hasattr(way, "PostEncoder") and not checkpoint.model.feature_families
        self._encoder: Any = (
            way.PostEncoder(checkpoint.model, checkpoint.encoder) if has_encoder else None
        )
        self._posts: OrderedDict[Key, Any] = OrderedDict()
        self._post_bytes, self._lock = 0, Lock()

    @property
    def bytes(self) -> int:
        """Size of the cache now."""
        return self._post_bytes + (self._encoder.bytes if self._encoder else 0)

    def score(self, pairs: Pairs) -> npt.NDArray[np.float32]:
        """Scores [P], as of :meth:`TrainedReranker.score`; they do not depend on the other pairs.

        Raises:
            RerankerError: a score is not a finite number.
        """
        if self._encoder is None:
            self.misses += len(pairs.texts)
            return self.checkpoint.score(pairs)
        scores = np.zeros(len(pairs), dtype=np.float32)
        with torch.inference_mode():
            queries = self._encoder.queries(pairs.queries)
            keys = [key.tobytes() for key in keys_of(pairs.texts, pairs.urls)]
            # Equal posts get equal scores, to the last digit.
            places: dict[Key, int] = {}
            first = np.array([places.setdefault(key, n) for n, key in enumerate(keys)], np.int64)
            pairs = replace(pairs, post_index=first[pairs.post_index])
            kept = dict(zip(places.values(), self._find(list(places)), strict=True))
            new = np.array([post for post in kept if kept[post] is None], dtype=np.int64)
            for block in _blocks(new):
                texts = [pairs.texts[post] for post in block.tolist()]
                encoded = self._encoder.posts(texts, [pairs.urls[post] for post in block.tolist()])
                self._compare(dict(enumerate(queries)), pairs, block, encoded, scores)
                self._keep([keys[post] for post in block.tolist()], self._encoder.cut(encoded))
            for number, query in enumerate(queries):
                asked = np.unique(pairs.post_index[pairs.query_index == number])
                for block in _blocks(asked[~np.isin(asked, new)]):
                    joined = self._encoder.join([kept[post] for post in block.tolist()])
                    self._compare({number: query}, pairs, block, joined, scores)
        check_finite(scores)
        return scores

    def _compare(
        self,
        queries: Mapping[int, Any],
        pairs: Pairs,
        posts: Rows,
        encoded: Any,
        scores: npt.NDArray[np.float32],
    ) -> None:
        """Write the scores of the pairs of ``queries`` with ``posts`` [B], which were encoded."""
        places = np.full(len(pairs.texts), -1, dtype=np.int64)
        places[posts] = np.arange(len(posts))
        rows = np.flatnonzero(places[pairs.post_index] >= 0)
        for query in queries.keys() & {*pairs.query_index[rows].tolist()}:
            own = rows[pairs.query_index[rows] == query]
            found = places[pairs.post_index[own]]
            first, end = int(found.min()), int(found.max()) + 1
            part = encoded if end - first == len(posts) else encoded.part(first, end)
            scores[own] = self._encoder.scores(queries[query], part).numpy()[found - first]

    def _find(self, keys: Sequence[Key]) -> list[Any]:
        """The encoded post of each key, None if it is not here."""
        with self._lock:
            found = [self._posts.get(key) for key in keys]
            for key, post in zip(keys, found, strict=True):
                if post is not None:
                    self._posts.move_to_end(key)
            hits = sum(post is not None for post in found)
            self.hits, self.misses = self.hits + hits, self.misses + len(keys) - hits
        return found

    def _keep(self, keys: Sequence[Key], posts: Sequence[Any]) -> None:
        """Keep posts, and drop those that were not asked for longest."""
        with self._lock:
            for key, post in zip(keys, posts, strict=True):
                old = self._posts.pop(key, None)
                self._posts[key] = post
                self._post_bytes += post.bytes - (old.bytes if old else 0)
            while self._posts and self.bytes > self.max_bytes:
                _, oldest = self._posts.popitem(last=False)
                self._post_bytes -= oldest.bytes


def _blocks(rows: Rows) -> list[Rows]:
    return [rows[start : start + BLOCK] for start in range(0, len(rows), BLOCK)]
