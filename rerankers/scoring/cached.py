"""Scores of few pairs at a time, as requests bring them: posts come again and again.

The tables of the last posts are kept for models over features (:mod:`rerankers.features._recent`).
Other models read each post anew.
"""

from __future__ import annotations

from itertools import islice
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rerankers.base import Pairs, Reranker, Resources
from rerankers.features import RecentPosts
from rerankers.scoring.batches import score
from rerankers.text.inputs import TextEncoder

COMMON = 20_000
"""Words of a source of IDF that a model over features knows from the start: half a second."""

SOME = Pairs(["cuts"], ["bbc cuts jobs", "lunch"], ["", ""], np.zeros(2, np.int64), np.arange(2))
"""Pairs to see whether a scorer works."""


class Counts(NamedTuple):
    """Posts found among the kept ones, posts not found there, and bytes of the kept ones."""

    hits: int = 0
    misses: int = 0
    bytes: int = 0

    def __add__(self, other: Counts) -> Counts:  # type: ignore[override]
        """The sums over two caches."""
        return Counts(*map(sum, zip(self, other, strict=True)))


class CachedScorer:
    """Scores pairs by a model, and keeps what it has read of the last posts.

    Its methods may be called by several threads at once.

    Args:
        model: in evaluation mode.
        encoder: of its checkpoint.
        max_bytes: of the kept posts.
        resources: of a collection, for pairs without their own and models over features.

    Attributes:
        recent: posts of a model over features.
    """

    def __init__(
        self,
        model: Reranker,
        encoder: TextEncoder,
        max_bytes: int,
        resources: Resources | None = None,
    ) -> None:
        self.model, self.encoder = model, encoder
        self._resources = resources or {}
        self.recent = RecentPosts(max_bytes)

    @property
    def counts(self) -> Counts:
        """Of the kept posts."""
        return Counts(self.recent.hits, self.recent.misses, self.recent.bytes)

    def warm_up(self) -> None:
        """Score posts of common words: first uses would make the first requests slow."""
        is_kept = not self.model.post_inputs
        common, size = [*islice(self.encoder.idf.known(), COMMON * is_kept)], 100
        texts = [" ".join(common[at : at + size]) for at in range(0, len(common), size)]
        rows = np.arange(len(texts))
        self.score(SOME)
        self.score(Pairs(["cuts"], texts, [""] * len(texts), rows * 0, rows))
        self.recent.hits = self.recent.misses = 0

    def score(self, pairs: Pairs) -> npt.NDArray[np.float32]:
        """Scores [P]; see :func:`rerankers.scoring.batches.score`."""
        pairs = pairs.with_resources(self._resources)
        return score(self.model, pairs, self.encoder, recent=self.recent)

    def check(self) -> None:
        """Score some pairs; raises what goes wrong."""
        self.score(SOME)
