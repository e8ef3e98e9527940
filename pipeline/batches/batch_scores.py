"""Score the rows of a batch job; this runs in the main process and in Ray workers."""

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
    """The checkpoint of a model, and the settings with which processes load it."""

    source: Any  # tweetrerank.pipeline.ranking.build.Source
    name: str  # Registered name of the model; empty takes the checkpoint's
    batch_size: int
    device: str
    threads: int | None

    def load(self, device: str | None = None) -> Any:
        """Return the model, loaded on ``device`` or by default on ``self.device``.

        Raises RerankerError if the model needs more than the rows of a job have.
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
    """A batch job: its input files, the form of their rows, and the model."""

    files: Sequence[Path]
    form: Form
    loader: ModelLoader
    weight: float  # λ, the share of the model's score; 1 if it is not mixed


def add_scores(rows: Sequence[Row], form: Form, reranker: Any) -> None:
    """Add a score to each post, rounded to as many digits as the service returns."""
    # The model groups pairs by their query. A query that occurs several times has
    # several lists, so they are scored in different rounds.
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
        # The scores of mixtures are in double precision.
        decimals = 7 if values.itemsize == 4 else 12
        scores = values.astype(float).round(decimals)
        for (_, post), score in zip(pairs, scores.tolist(), strict=True):
            post[SCORE] = score


def _lists(rows: Sequence[Row], form: Form) -> list[tuple[str, list[Row]]]:
    """Return the pairs (query, posts). Consecutive pairs of a query are one list."""
    if form.is_nested:
        return [(row["query"], row[POSTS]) for row in rows]
    groups = groupby(rows, itemgetter("query_id", "query"))
    return [(query, list(pairs)) for (_, query), pairs in groups]
