"""Training with validation: by a development part, or by topics held out in folds.

A collection with a development part is trained on its training part and judged by the development
part. Elsewhere validation is by topic. With K folds each topic is held out once, its scores are
those of a model that has not seen its judgments, and the model that is kept is trained on all
topics. With one fold, a share of the topics is held out once and that model is kept.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.collections.trec import Run, format_run
from pipeline.training.training_set import JudgedCandidates, TrainingSet
from rerankers.networks.training.settings import Settings
from rerankers.reranker import Model
from rerankers.text.ragged import Rows

HeldOutRows = tuple[JudgedCandidates, Rows]
"""Rows of pairs that a training must not see."""

Fit = Callable[[str, Rows, HeldOutRows | None], tuple[Model, npt.NDArray[np.float32]]]
"""Name of a part, rows to train on, held-out rows -> a model, and its scores of the latter."""


@dataclass(frozen=True)
class Outcome:
    """A trained model with its validation figures."""

    model: Model
    held_out_run: Run  # Scores of held-out topics by models that had not seen them
    validation_map: Mapping[str, float]  # Fold -> MAP of its held-out topics
    folds: int  # Folds of topics; 0 with a development part
    record: Mapping[str, Any]  # Facts of the training, for ``metrics.json``

    def held_out_file(self) -> bytes:
        """The held-out run as gzip; the same run gives the same bytes."""
        lines = (f"{line}\n" for line in format_run(self.held_out_run, "held-out"))
        return gzip.compress("".join(lines).encode(), mtime=0)


def validated(
    training_set: TrainingSet, folds: int, settings: Settings, record: Mapping[str, Any], fit: Fit
) -> Outcome:
    """Train by ``fit`` on the parts of a training set; see the module's docstring."""
    data, development = training_set.training, training_set.development
    run: Run = {}
    figures: dict[str, float] = {}

    def judged(part: str, rows: Rows, known: JudgedCandidates, others: Rows) -> Model:
        shown = "training" if known is development else part
        model, scores = fit(shown, data.to_train(rows), (known, others))
        found = known.run_of(others, scores)
        run.update(found)
        figures[part] = known.mean_of("AP", found)
        return model

    every = np.arange(len(data.candidates))
    if development:
        others = np.arange(len(development.candidates))
        model = judged("development", every, development, others)
        return Outcome(model, run, figures, 0, record)
    query_index = data.candidates.texts().query_index
    groups = data.groups if settings.held_out_of == "each" else ()
    parts = split_topics(query_index, folds, settings.seed, settings.held_out, groups, data.twins)
    for number, is_held_out in enumerate(parts, start=1):
        rows, others = np.flatnonzero(~is_held_out), np.flatnonzero(is_held_out)
        model = judged(f"fold {number}", rows, data, others)
    if folds > 1:
        model, _ = fit("all topics", data.to_train(every), None)
    return Outcome(model, run, figures, folds, record)


def split_topics(
    query_index: Rows,
    count: int,
    seed: int,
    share: float = 0.15,
    groups: Sequence[str] = (),
    twins: Sequence[str] = (),
) -> list[npt.NDArray[np.bool_]]:
    """[P] whether pairs are held out, for each of ``count`` folds of topics.

    One fold holds out a ``share`` of the topics; with ``groups`` [Q], of each group's. Queries of
    the same name in ``twins`` [Q] are one topic.
    """
    if twins:
        query_index = np.unique(twins, return_inverse=True)[1][query_index]
    queries = np.random.default_rng(seed).permutation(np.unique(query_index))
    if count > 1:
        return [np.isin(query_index, part) for part in np.array_split(queries, count)]
    group_of = np.array([groups[query] if groups else "" for query in queries.tolist()])
    parts = [queries[group_of == name] for name in np.unique(group_of)]
    shares = [part[: max(1, round(share * len(part)))] for part in parts]
    return [np.isin(query_index, np.concatenate(shares))]
