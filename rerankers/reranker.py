"""A trained reranker: ranks and scores posts for queries."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rerankers import features
from rerankers.base import (
    FIRST_STAGE,
    ORDER,
    PRIOR,
    Pairs,
    Reranker,
    Resources,
    lists_of,
    places_of,
    prior_of_rank,
)
from rerankers.devices import one_thread_each
from rerankers.errors import RerankerError, warn
from rerankers.interpolation import minmax, mix
from rerankers.scoring import batches
from rerankers.text.inputs import TextEncoder
from rerankers.text.passages import best_passages
from rerankers.text.ragged import Rows

if TYPE_CHECKING:
    from rerankers.scoring.cached import CachedScorer

FEW = 2000
"""Pairs that :meth:`TrainedReranker.predict` scores one block after the other, as a service does;
of more it computes what is repeated only once."""

TUNING_FILE = "lambda.json"
"""In a checkpoint's folder: the tuned λ and its provenance."""

Post = str | tuple[str, str]
"""A post's text, or its text and the URL that it links to."""


class RankedPost(NamedTuple):
    """A post with its score, and its place in the list that was ranked."""

    index: int  # type: ignore[assignment]  # Hides tuple.index
    score: float
    text: str


@dataclasses.dataclass(frozen=True, repr=False)
class TrainedReranker:
    """A reranker that is ready to score."""

    name: str
    model: Reranker
    """In evaluation mode."""
    encoder: TextEncoder
    metrics: Mapping[str, Any]
    """Content of ``metrics.json``."""
    directory: Path
    resources: Resources = dataclasses.field(default_factory=dict)
    """What is known of a collection, for pairs without their own."""

    def __repr__(self) -> str:
        return f"TrainedReranker({self.name!r}, {str(self.directory)!r})"

    def rank(
        self,
        query: str,
        posts: Sequence[Post],
        top_k: int | None = None,
        scores: Sequence[float] | None = None,
        weight: float | None = None,
        in_order: bool = False,
    ) -> list[RankedPost]:
        """Rank posts for a query, best first; posts of equal scores keep their order.

        Args:
            query: the query.
            posts: texts, or (text, URL) of posts with a link.
            top_k: best posts to return; None returns all.
            scores: of the posts by a first stage; see :meth:`predict`, also for what follows.
            weight: the model's share.
            in_order: whether the posts stand in the order of a first stage, best first.

        Raises:
            RerankerError: as :meth:`predict`, or ``top_k`` is negative.
        """
        if isinstance(posts, str):
            raise RerankerError(f"posts: found the text {posts[:40]!r}, expected a list of posts")
        if top_k is not None and top_k < 0:
            raise RerankerError(f"top_k: found {top_k}, expected 0 or more, or None for all posts")
        values = self.predict([(query, post) for post in posts], scores, weight, in_order)
        order = np.argsort(-values, kind="stable")[:top_k].tolist()
        return [RankedPost(row, float(values[row]), _text_and_url(posts[row])[0]) for row in order]

    def predict(
        self,
        pairs: Sequence[tuple[str, Post]],
        scores: Sequence[float] | None = None,
        weight: float | None = None,
        in_order: bool = False,
    ) -> npt.NDArray[np.floating]:
        """Score (query, post) pairs: [P] in the order of the pairs, higher is better.

        With the ``scores`` of a first stage, the result is their mixture: λ · model + (1 − λ) ·
        first stage, after both were scaled to [0, 1] over the pairs of each query. Models over
        features read these scores as a feature, too, and their own score is the result unless
        there is a ``weight``.

        Models over features take the pairs of a query as its list of candidates. ``window`` reads
        their scores, or their order, or does without. The others miss the scores of the lexical
        rankers, which ``pipeline.search`` gives them, and then rank worse, with a warning.

        A text of more than 1,000 characters has the score of its best passage for the query.

        Args:
            pairs: query and post, which is a text or (text, URL).
            scores: [P] of a first stage; None gives the model's scores alone.
            weight: λ, from 0 to 1; None is the one tuned with the checkpoint.
            in_order: whether each query's pairs stand in the order of a first stage, best first;
                it is read by ``window`` if there are no scores.

        Raises:
            RerankerError: a pair or a score is none, or λ is missing.
        """
        queries: dict[str, int] = {}
        posts: dict[tuple[str, str], int] = {}
        checked = [_query_and_post(pair) for pair in pairs]
        read = best_passages([query for query, _ in checked], [text for _, (text, _) in checked])
        places = [
            (queries.setdefault(query, len(queries)), posts.setdefault((text, url), len(posts)))
            for (query, (_, url)), text in zip(checked, read, strict=True)
        ]
        rows = np.array(places, dtype=np.int64).reshape(-1, 2)
        texts, urls = [text for text, _ in posts], [url for _, url in posts]
        known = Pairs(list(queries), texts, urls, rows[:, 0], rows[:, 1])
        first = None if scores is None else _checked(scores, len(known))
        if first is None and weight is not None:
            raise RerankerError(f"weight: found {weight} without scores to mix, expected `scores`")
        share = 1.0 if first is None else self._share(weight)
        if first is not None:
            known = dataclasses.replace(known, signals=_signals(known.query_index, first))
        elif in_order:
            given = places_of(known.query_index, np.zeros(len(known)))
            known = dataclasses.replace(known, signals={ORDER: given})
        self._warn_of_missing(known)
        is_few = len(rows) <= FEW and self.model.device_of().type == "cpu"
        if is_few:
            with one_thread_each():  # Waiting for a second one takes longer than its share.
                values = self._of_few.score(known)
        else:
            values = self.score(known)
        if first is None or share == 1:
            return values
        mixed = np.zeros(len(known))
        for own in lists_of(known.query_index):
            neural, lexical = (minmax(each[own].tolist()) for each in (values, first))
            mixed[own] = mix(lexical, neural, share)
        return mixed

    def _warn_of_missing(self, pairs: Pairs) -> None:
        """Warn of signals that the model was trained with and the pairs lack."""
        if self.model.reads_windows:
            return
        wanted = features.signals_of(self.model.feature_families)
        if missing := sorted(wanted - pairs.signals.keys()):
            warn(
                f"{self.name} was trained with {', '.join(missing)}, which texts alone do not "
                "have; without them window ranks better"
            )

    def _share(self, weight: float | None) -> float:
        """λ: ``weight``, or the tuned one."""
        if weight is not None:
            if not 0 <= weight <= 1:
                raise RerankerError(f"weight: found {weight}, expected a number from 0 to 1")
            return weight
        if not self.model.post_inputs:
            return 1.0
        path = self.directory / TUNING_FILE
        try:
            tuned = json.loads(path.read_text(encoding="utf-8"))
            share, normalization = float(tuned["weight"]), tuned["normalization"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RerankerError(
                f"{path}: found no tuned λ ({error!r}); give `weight`, the share of the model's "
                "score from 0 to 1"
            ) from None
        if normalization != "minmax":
            raise RerankerError(
                f"{path}: found a λ for scores normalised by {normalization}, expected minmax; "
                "give `weight`"
            )
        return share

    @cached_property
    def _of_few(self) -> CachedScorer:
        """Remembers the terms that it has read, but no post."""
        from rerankers.scoring.cached import CachedScorer

        return CachedScorer(self.model, self.encoder, 0, self.resources)

    def score(
        self,
        pairs: Pairs,
        batch_size: int = batches.BATCH_SIZE,
        progress: Callable[[int], None] = lambda pairs_done: None,
    ) -> npt.NDArray[np.float32]:
        """Score pairs given as index arrays: [P]; see :func:`rerankers.scoring.batches.score`."""
        pairs = pairs.with_resources(self.resources)
        return batches.score(self.model, pairs, self.encoder, batch_size, progress)


def _checked(scores: Sequence[float], count: int) -> npt.NDArray[np.float64]:
    """Scores of a first stage [P]."""
    values = np.asarray(scores, dtype=np.float64).reshape(-1)
    if len(values) != count or not np.isfinite(values).all():
        raise RerankerError(
            f"scores: found {len(values)} numbers, {int((~np.isfinite(values)).sum())} of them not "
            f"finite, expected a finite one for each of {count} posts"
        )
    return values


def _signals(
    query_index: Rows, scores: npt.NDArray[np.float64]
) -> dict[str, npt.NDArray[np.float32]]:
    """The signals that scores of a first stage give: themselves, and the prior of each rank."""
    places = places_of(query_index, scores)
    priors = prior_of_rank(places.astype(np.int64))
    return {FIRST_STAGE: scores.astype(np.float32), ORDER: places, PRIOR: priors}


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
