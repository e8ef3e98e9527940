"""A trained reranker: ranks and scores posts for queries."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from rerankers import features
from rerankers.base import Pairs, Reranker
from rerankers.errors import RerankerError
from rerankers.scoring import batches
from rerankers.scoring.cached import CachedScorer
from rerankers.text.inputs import TextEncoder

FEW = 2000
"""Pairs that :meth:`TrainedReranker.predict` scores one block after the other, as a service does;
of more it computes what is repeated only once."""

Post = str | tuple[str, str]
"""A post's text, or its text and the URL that it links to."""


class RankedPost(NamedTuple):
    """A post with its score, and its place in the list that was ranked."""

    index: int  # type: ignore[assignment]  # Hides tuple.index
    score: float
    text: str


@dataclasses.dataclass(frozen=True)
class TrainedReranker:
    """A reranker that is ready to score."""

    name: str
    model: Reranker
    """In evaluation mode."""
    encoder: TextEncoder
    metrics: Mapping[str, Any]
    """Content of ``metrics.json``."""
    directory: Path
    devices: Sequence[torch.device] = ()
    """Devices that share the topics to score; the model is on the first. Empty: the model's own."""
    precomputed: features.KnownPosts | None = None
    """Posts read before, for models over features alone."""

    def rank(self, query: str, posts: Sequence[Post], top_k: int | None = None) -> list[RankedPost]:
        """Rank posts for a query, best first; posts of equal scores keep their order.

        Posts are texts, or (text, URL) of posts with a link.

        Raises:
            RerankerError: a post is neither a text nor (text, URL), or ``top_k`` is negative.
        """
        if top_k is not None and top_k < 0:
            raise RerankerError(f"top_k: found {top_k}, expected 0 or more, or None for all posts")
        scores = self.predict([(query, post) for post in posts])
        order = np.argsort(-scores, kind="stable")[:top_k].tolist()
        return [RankedPost(row, float(scores[row]), _text_and_url(posts[row])[0]) for row in order]

    def predict(self, pairs: Sequence[tuple[str, Post]]) -> npt.NDArray[np.float32]:
        """Score (query, post) pairs: [P] in the order of the pairs, higher is better.

        Models over features take the pairs of a query as its list of candidates. They miss the
        scores of the lexical rankers, which ``pipeline.search`` gives them, and then rank worse
        than ``mp_hcnn``, with a warning.

        Raises:
            RerankerError: a pair is not (query, post), with the post a text or (text, URL).
        """
        queries: dict[str, int] = {}
        posts: dict[tuple[str, str], int] = {}
        places = [
            (queries.setdefault(query, len(queries)), posts.setdefault(post, len(posts)))
            for query, post in map(_query_and_post, pairs)
        ]
        if missing := sorted(features.signals_of(self.model.feature_families)):
            warnings.warn(
                f"{self.name} was trained with {', '.join(missing)}, which texts alone do not "
                "have; without them mp_hcnn ranks better",
                RuntimeWarning,
                stacklevel=2,
            )
        rows = np.array(places, dtype=np.int64).reshape(-1, 2)
        texts, urls = [text for text, _ in posts], [url for _, url in posts]
        known = Pairs(list(queries), texts, urls, rows[:, 0], rows[:, 1])
        is_few = len(rows) <= FEW and self.model.device_of().type == "cpu"
        return self._of_few.score(known) if is_few else self.score(known)

    @cached_property
    def _of_few(self) -> CachedScorer:
        """Remembers the terms that it has read, but no post."""
        return CachedScorer(self.model, self.encoder, max_bytes=0)

    def score(
        self,
        pairs: Pairs,
        batch_size: int = batches.BATCH_SIZE,
        progress: Callable[[int], None] = lambda pairs_done: None,
        precision: str = "fp32",
    ) -> npt.NDArray[np.float32]:
        """Score pairs given as index arrays: [P]; see :func:`rerankers.scoring.batches.score`."""
        how = (batch_size, progress, precision, self.devices, self.precomputed)
        return batches.score(self.model, pairs, self.encoder, *how)


def _query_and_post(pair: Any) -> tuple[str, tuple[str, str]]:
    """A query's text and a post's text and URL, checked."""
    if isinstance(pair, tuple | list) and len(pair) == 2 and isinstance(pair[0], str):
        return pair[0], _text_and_url(pair[1])
    raise RerankerError(f"found the pair {pair!r}, expected (query, post)")


def _text_and_url(post: Any) -> tuple[str, str]:
    """A post's text and its URL ("" without one), checked."""
    if isinstance(post, str):
        return post, ""
    if isinstance(post, tuple | list) and [*map(type, post)] == [str, str]:
        return post[0], post[1]
    raise RerankerError(f"found the post {post!r}, expected a text or (text, URL)")
