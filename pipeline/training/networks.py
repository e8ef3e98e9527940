"""Training of networks with held-out topics or a development part.

A collection with a development part is trained on its training part and stopped early by the
development part. Elsewhere validation is by topic. With K folds each topic is held out once: its
fold stops the training early, its scores (by a model that has not seen its judgments) serve to
tune λ, and the model that is kept is trained on all topics for the median of the folds' best
epochs. With one fold, a share of the topics is held out once and the model of the best epoch is
kept.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from pipeline.collections.trec import Run
from pipeline.runtime import bar
from pipeline.training.folds import Outcome, split_topics
from pipeline.training.training_set import JudgedCandidates
from rerankers.networks.base import Reranker
from rerankers.networks.batches import score_tokenized
from rerankers.networks.inputs import Tokenized
from rerankers.networks.network import Network
from rerankers.networks.training.examples import CachedInteractions, Examples, Rows
from rerankers.networks.training.loop import History, train
from rerankers.networks.training.settings import Settings


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
    build: Callable[[], Network],
    examples: Examples,
    data: JudgedCandidates,
    schedule: Schedule,
    folds: int,
) -> Outcome:
    """Train with held-out topics, see the module's docstring.

    ``build`` returns the same new network at every call; ``examples`` are in the order of ``data``.
    """
    settings = schedule.settings
    held_out_run: Run = {}
    validation_map, histories = {}, {}
    groups = data.groups if settings.held_out_of == "each" else ()
    queries = examples.pairs.query_index
    parts = split_topics(queries, folds, settings.seed, settings.held_out, groups, data.twins)
    for name, training, held_out in parts:
        network, validation = build(), examples.take(held_out)

        def measure(scores: npt.NDArray[np.float32], rows: Rows = held_out) -> float:
            return schedule.measure_of(data, data.run_of(rows, scores))

        histories[name] = schedule.train(
            name, network.model, examples.take(data.to_train(training)), validation, measure
        )
        run = data.run_of(held_out, score_tokenized(network.model, validation.pairs))
        held_out_run |= run
        validation_map[name] = data.mean_of("AP", run)
    epochs = round(statistics.median(history.best for history in histories.values()))
    if folds > 1:
        network = build()
        final = replace(schedule, settings=replace(settings, epochs=epochs))
        rows = data.to_train(np.arange(len(examples.relevant)))
        everything = examples if len(rows) == len(examples.relevant) else examples.take(rows)
        histories["all topics"] = final.train("all topics", network.model, everything)
    figures = {name: history.epochs for name, history in histories.items()}
    return Outcome(network, held_out_run, validation_map, folds, epochs, figures)


def train_with_development(
    network: Network,
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

    history = schedule.train("training", network.model, training, development, measure)
    run = data.run_of(rows, score_tokenized(network.model, development.pairs))
    figures = {"development": data.mean_of("AP", run)}
    histories = {"training": history.epochs}
    return Outcome(network, run, figures, epochs=history.best, histories=histories)


def examples_of(network: Network, data: JudgedCandidates, settings: Settings) -> Examples:
    """The judged candidates as the network reads them."""
    model = network.model
    tokenized = Tokenized.from_pairs(data.candidates.pairs(), network.encoder, model)
    # Corrupted pairs are made during training, so they cannot be compared beforehand.
    if model.interactions_are_fixed() and settings.sampling != "corrupted":
        with bar(len(tokenized.query_index), "comparing", "pair") as progress:
            compared = CachedInteractions.compute(model, tokenized, progress)
        return Examples(compared, data.relevant())
    return Examples(tokenized, data.relevant())
