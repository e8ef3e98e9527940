"""Scores of posts that come again and again: their encodings are kept between calls.

Of the models with a ``PostEncoder`` in their fast path's module; of models over features their
tables (:mod:`rerankers.scoring.recent`). Posts of other models, and of networks on a GPU, are read
each time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from functools import lru_cache
from itertools import islice
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rerankers.base import Pairs, Reranker, Resources
from rerankers.devices import is_host
from rerankers.scoring import fast_paths
from rerankers.scoring.batches import check_finite, score
from rerankers.scoring.precomputed import keys_of
from rerankers.scoring.recent import MOST_BYTES, RecentPosts
from rerankers.scoring.windows import Buffers
from rerankers.text.inputs import TextEncoder
from rerankers.text.ragged import Rows

Key = bytes
"""Hash of a post's text and URL."""

Place = tuple["Block", int]
"""A block, and a post's number there."""

NUMBER = 4
"""Bytes of a float32."""

QUERIES = 256
"""Queries whose vectors are kept, of some tens of kilobytes each."""

COMMON = 20_000
"""Words of a source of IDF that a model over features knows from the start: half a second."""

BLOCK = 128
"""Posts that are encoded or compared together; their vectors fit the processor's cache."""


class Block:
    """Posts that were encoded together, and are dropped together.

    Attributes:
        keys: of the posts.
        posts: as a ``PostEncoder`` gave them.
        bytes: of their vectors.
    """

    def __init__(self, keys: Sequence[Key], posts: Any, size: int) -> None:
        self.keys, self.posts, self.bytes = keys, posts, size


class CachedScorer:
    """Scores pairs by a model, and keeps the encodings of the posts that were read last.

    Its methods may be called by several threads at once.

    Args:
        model: in evaluation mode.
        encoder: of its checkpoint.
        max_bytes: of the kept encodings and terms, besides the posts in work.
        resources: of a collection, for pairs without their own and models over features.

    Attributes:
        recent: posts of a model over features.
        hits: look-ups of a query's post that found it.
        misses: look-ups that did not.
    """

    def __init__(
        self,
        model: Reranker,
        encoder: TextEncoder,
        max_bytes: int,
        resources: Resources | None = None,
    ) -> None:
        self.model, self.encoder, self.max_bytes = model, encoder, max_bytes
        self._resources = resources or {}
        self.hits, self.misses = 0, 0
        way = fast_paths.way_of(model)
        has_encoder = hasattr(way, "PostEncoder") and not model.feature_families
        has_encoder &= is_host(model.device_of())
        post_encoder: Any = way.PostEncoder(model, encoder) if has_encoder else None
        self._encoder = post_encoder
        # Does not refer to self: a cycle would keep the memory of a model that is swapped out.
        self._query = lru_cache(QUERIES)(lambda text: post_encoder.query(text))
        self._blocks: OrderedDict[Block, None] = OrderedDict()
        """The block used last at the end."""
        self._places: dict[Key, Place] = {}
        self._block_bytes = 0
        self._lock, self._buffers = Lock(), Buffers()
        self.recent = RecentPosts(min(max_bytes, MOST_BYTES))

    @property
    def bytes(self) -> int:
        """Size of the cache now."""
        terms = self._encoder.bytes if self._encoder else 0
        return self._block_bytes + terms + self.recent.bytes

    def warm_up(self) -> None:
        """Score posts of common words: first uses would make the first requests slow."""
        is_kept = not self.model.post_inputs
        common, size = [*islice(self.encoder.idf.known(), COMMON * is_kept)], 100
        texts = [" ".join(common[at : at + size]) for at in range(0, len(common), size)]
        rows = np.arange(2 + len(texts))
        posts = ["bbc cuts jobs", "lunch", *texts]
        self.score(Pairs(["cuts"], posts, [""] * len(posts), rows * 0, rows))
        self.hits = self.misses = self.recent.hits = self.recent.misses = 0

    def score(self, pairs: Pairs) -> npt.NDArray[np.float32]:
        """Scores [P] of :func:`rerankers.scoring.batches.score`, whatever the other pairs are.

        Raises:
            RerankerError: a score is not a finite number.
        """
        if self._encoder is None:
            pairs = pairs.with_resources(self._resources)
            scores = score(self.model, pairs, self.encoder, known=self.recent)
            self.hits, self.misses = self.recent.hits, self.recent.misses
            return scores
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
        places = self._find(wanted)
        new = np.array([place is None for place in places], dtype=np.bool_)
        for rows in _parts(np.flatnonzero(new)):
            texts = [pairs.texts[post] for post in posts[rows].tolist()]
            urls = [pairs.urls[post] for post in posts[rows].tolist()]
            scores[rows] = self._read(query, texts, urls, [wanted[row] for row in rows.tolist()])
        for rows in _parts(np.flatnonzero(~new)):
            kept = [place for row in rows.tolist() if (place := places[row])]
            scores[rows] = self._encoder.scores(query, _joined(kept)).numpy()
        return scores

    def _find(self, keys: Sequence[Key]) -> list[Place | None]:
        """Block of each post, and its place there; None if it is not here."""
        with self._lock:
            places = [self._places.get(key) for key in keys]
            for block in {place[0]: None for place in places if place}:
                self._blocks.move_to_end(block)
            hits = sum(place is not None for place in places)
            self.hits, self.misses = self.hits + hits, self.misses + len(keys) - hits
        return places

    def _read(
        self, query: Any, texts: Sequence[str], urls: Sequence[str], keys: Sequence[Key]
    ) -> npt.NDArray[np.float32]:
        """Scores [B] of new posts, which are kept if there is room."""
        size, is_kept = 0, False

        def memory(numbers: int) -> Tensor:
            nonlocal size, is_kept
            size = NUMBER * numbers
            is_kept = size <= self._room
            return torch.empty(numbers) if is_kept else self._buffers.rows(0, numbers, 1).view(-1)

        posts, scores = self._encoder.read(query, texts, urls, memory)
        if is_kept:
            self._keep(Block(keys, posts, size))
        values: npt.NDArray[np.float32] = scores.numpy()
        return values

    @property
    def _room(self) -> int:
        """Bytes for all blocks together."""
        return self.max_bytes - self._encoder.bytes

    def _keep(self, block: Block) -> None:
        """Keep a block in place of those that were not used for the longest time."""
        with self._lock:
            self._blocks[block] = None
            self._block_bytes += block.bytes
            self._places.update((key, (block, n)) for n, key in enumerate(block.keys))
            while self._blocks and self._block_bytes > self._room:
                old, _ = self._blocks.popitem(last=False)
                self._block_bytes -= old.bytes
                for key in old.keys:
                    # Another thread may have read the post at the same time.
                    if self._places.get(key, (None,))[0] is old:
                        del self._places[key]


def _joined(kept: Sequence[Place]) -> Any:
    """The posts at these places; neighbours of a block are taken together, without a copy."""
    runs: list[tuple[Block, int, int]] = []
    for block, place in kept:
        if runs and runs[-1][0] is block and runs[-1][2] == place:
            runs[-1] = block, runs[-1][1], place + 1
        else:
            runs.append((block, place, place + 1))
    parts = [block.posts.slice(first, end) for block, first, end in runs]
    return type(parts[0]).joined(parts)


def _parts(rows: Rows) -> list[Rows]:
    """Parts of nearly the same size, each of which fits a block."""
    return np.array_split(rows, -(-len(rows) // BLOCK)) if len(rows) else []
