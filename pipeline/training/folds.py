"""Folds of topics, and training with held-out topics or a development part.

A collection with a development part is trained on its training part and stopped early by the
development part. Elsewhere validation is by topic. With K folds each topic is held out once: its
fold stops the training early, its scores (by a model that has not seen its judgments) serve to
tune λ, and the model that is kept is trained on all topics for the median of the folds' best
epochs. With one fold, a share of the topics is held out once and the model of the best epoch is
kept.
"""

from __future__ import annotations

import gzip
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.collections.trec import Run, format_run
from pipeline.training.training_set import JudgedCandidates
from rerankers.base import Reranker
from rerankers.scoring.batches import score_tokenized
from rerankers.training.examples import Examples, Rows
from rerankers.training.loop import History, train
from rerankers.training.settings import Settings


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

    model: Reranker
    held_out_run: Run  # Neural scores of held-out topics by models that had not seen them
    validation_map: Mapping[str, float]  # Fold -> MAP of its held-out topics
    epochs: int  # Of the kept model
    histories: Mapping[str, History]  # Fold or part -> figures of every epoch
    folds: int = 0  # Folds of topics; 0 with a development part

    def held_out_file(self) -> bytes:
        """The held-out run as gzip; the same run gives the same bytes."""
        lines = (f"{line}\n" for line in format_run(self.held_out_run, "held-out"))
        return gzip.compress("".join(lines).encode(), mtime=0)


@dataclass(frozen=True)
class Schedule:
    """How to train; ``progress`` is called with the part's name, the epoch, step and a message."""

    settings: Settings
    progress: Callable[[str, int, int, str], None]

    def train(
        self,
        name: str,
        model: Reranker,
        training: Examples,
        held_out: Examples | None = None,
        measure: Callable[[npt.NDArray[np.float32]], float] = lambda scores: 0.0,
    ) -> History:
        """Train one part; ``measure`` of the held-out pairs' scores chooses the epoch."""
        return train(
            model,
            training,
            held_out,
            measure,
            self.settings,
            lambda epoch, step, message: self.progress(name, epoch, step, message),
        )

    def measure_of(self, data: JudgedCandidates, run: Run) -> float:
        """The measure that chooses the best epoch."""
        return data.mean_of("RR" if self.settings.select == "mrr" else "AP", run)


def cross_train(
    build: Callable[[], Reranker],
    examples: Examples,
    data: JudgedCandidates,
    schedule: Schedule,
    folds: int,
) -> Outcome:
    """Train with held-out topics, see the module's docstring.

    ``build`` returns the same new model at every call; ``examples`` are in the order of ``data``.
    """
    settings = schedule.settings
    held_out_run: Run = {}
    validation_map, histories = {}, {}
    groups = data.groups if settings.held_out_of == "each" else ()
    queries = examples.pairs.query_index
    parts = split_topics(queries, folds, settings.seed, settings.held_out, groups, data.twins)
    for name, training, held_out in parts:
        model, validation = build(), examples.take(held_out)

        def measure(scores: npt.NDArray[np.float32], rows: Rows = held_out) -> float:
            return schedule.measure_of(data, data.run_of(rows, scores))

        histories[name] = schedule.train(
            name, model, examples.take(data.to_train(training)), validation, measure
        )
        run = data.run_of(held_out, score_tokenized(model, validation.pairs))
        held_out_run |= run
        validation_map[name] = data.mean_of("AP", run)
    epochs = round(statistics.median(history.best for history in histories.values()))
    if folds > 1:
        model = build()
        final = replace(schedule, settings=replace(settings, epochs=epochs))
        rows = data.to_train(np.arange(len(examples.relevant)))
        everything = examples if len(rows) == len(examples.relevant) else examples.take(rows)
        histories["all topics"] = final.train("all topics", model, everything)
    return Outcome(model, held_out_run, validation_map, epochs, histories, folds)


def train_with_development(
    model: Reranker,
    training: Examples,
    development: Examples,
    data: JudgedCandidates,
    schedule: Schedule,
) -> Outcome:
    """Train on one part, stop early by another, and keep the model of the best epoch.

    ``development`` is in the order of ``data``, its candidates and judgments.
    """
    rows = np.arange(len(development.relevant))

    def measure(scores: npt.NDArray[np.float32]) -> float:
        return schedule.measure_of(data, data.run_of(rows, scores))

    history = schedule.train("training", model, training, development, measure)
    run = data.run_of(rows, score_tokenized(model, development.pairs))
    figures = {"development": data.mean_of("AP", run)}
    return Outcome(model, run, figures, history.best, {"training": history})
