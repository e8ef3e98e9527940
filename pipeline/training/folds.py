"""Folds of topics, and the outcome of a training with held-out ones."""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from pipeline.collections.trec import Run, format_run
from rerankers.reranker import Model
from rerankers.text.ragged import Rows


class Fold(NamedTuple):
    """Rows of pairs to train on, and rows of held-out topics."""

    name: str
    training: Rows
    held_out: Rows


def split_topics(
    query_index: Rows,
    count: int,
    seed: int,
    held_out_share: float = 0.15,
    groups: Sequence[str] = (),
    twins: Sequence[str] = (),
) -> Iterator[Fold]:
    """Split pairs by topic into ``count`` folds; one fold holds out a share of the topics.

    With ``groups``, one of each query, it holds out this share of every group. Queries of the same
    name in ``twins`` [Q] are one topic.
    """
    if twins:
        topic_of = np.unique(twins, return_inverse=True)[1]
        yield from split_topics(topic_of[query_index], count, seed, held_out_share)
        return
    queries = np.random.default_rng(seed).permutation(np.unique(query_index))
    group_of = np.array([groups[query] if groups else "" for query in queries.tolist()])
    shares = [
        part[: max(1, round(held_out_share * len(part)))]
        for part in (queries[group_of == name] for name in np.unique(group_of))
    ]
    parts = np.array_split(queries, count) if count > 1 else [np.concatenate(shares)]
    for number, part in enumerate(parts, start=1):
        held_out = np.isin(query_index, part)
        yield Fold(f"fold {number}", np.flatnonzero(~held_out), np.flatnonzero(held_out))


@dataclass(frozen=True)
class Outcome:
    """A trained model with its validation figures."""

    model: Model
    held_out_run: Run  # Scores of held-out topics by models that had not seen them
    validation_map: Mapping[str, float]  # Fold -> MAP of its held-out topics
    record: Mapping[str, Any]  # Facts of the training, for ``metrics.json``
    folds: int = 0  # Folds of topics; 0 with a development part

    def held_out_file(self) -> bytes:
        """The held-out run as gzip; the same run gives the same bytes."""
        lines = (f"{line}\n" for line in format_run(self.held_out_run, "held-out"))
        return gzip.compress("".join(lines).encode(), mtime=0)
