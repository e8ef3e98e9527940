"""Scores of a batch job's rows, in any process."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from tweetrerank.pipeline.batches.batch_rows import (
    FIRST_SCORE,
    POSTS,
    SCORE,
    Form,
    Row,
)
from tweetrerank.pipeline.runtime import choose_device


@dataclass(frozen=True)
class ModelLoader:
    """Checkpoint of a model, and its settings in a process that scores."""

    source: Any  # tweetrerank.pipeline.ranking.build.Source
    name: str  # Registered name; empty takes the checkpoint's
    batch_size: int
    device: str
    threads: int | None

    def load(self, device: str | None = None) -> Any:
        """Load the model, by default on ``self.device``.

        RerankerError: it needs more than rows have.
        """
        from tweetrerank.pipeline.ranking.checkpoints import check_reads_given
        from tweetrerank.rerankers import registry

        is_network = not self.name or registry.is_network(self.name)
        device = choose_device(device or self.device, self.threads, is_network)
        model = self.source.load(device, self.name or None, self.batch_size)
        check_reads_given(model)
        return model


@dataclass(frozen=True)
class Job:
    """Input files of a batch job, the form of their rows, and the model."""

    files: Sequence[Path]
    form: Form
    loader: ModelLoader
    weight: float  # λ; 1 is the model alone


def add_scores(rows: Sequence[Row], form: Form, reranker: Any) -> None:
    """Add the score of each post, with as many digits as the service returns."""
    # A query that occurs several times has several lists, which are scored apart.
    rounds: dict[int, list[tuple[str, Row]]] = defaultdict(list)
    seen: Counter[str] = Counter()
    for query, posts in _lists(rows, form):
        rounds[seen[query]] += ((query, post) for post in posts)
        seen[query] += 1
    for pairs in rounds.values():
        first_scores = None
        if form.has_first_stage:
            first_scores = [post[FIRST_SCORE] for _, post in pairs]
        values = reranker.predict(pairs, first_scores, in_order=form.in_order)
        # Mixtures have scores in double precision.
        decimals = 7 if values.itemsize == 4 else 12
        scores = values.astype(float).round(decimals)
        for (_, post), score in zip(pairs, scores.tolist(), strict=True):
            post[SCORE] = score


def _lists(rows: Sequence[Row], form: Form) -> list[tuple[str, list[Row]]]:
    """Return each query with its posts; consecutive pairs of a query are one list."""
    if form.is_nested:
        return [(row["query"], row[POSTS]) for row in rows]
    groups = groupby(rows, itemgetter("query_id", "query"))
    return [(query, list(pairs)) for (_, query), pairs in groups]
