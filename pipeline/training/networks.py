"""Training of networks with held-out topics or a development part.

A collection with a development part is trained on its training part and stopped early by the
development part. Elsewhere validation is by topic. With K folds each topic is held out once: its
fold stops the training early, its scores (by a model that has not seen its judgments) serve to
tune λ, and the model that is kept is trained on all topics for the median of the folds' best
epochs. With one fold, a share of the topics is held out once and the model of the best epoch is
kept.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from pipeline.collections.collection import NO_FILE
from pipeline.collections.trec import Run
from pipeline.runtime import bar, step_bar
from pipeline.training.folds import Outcome, split_topics
from pipeline.training.training_set import JudgedCandidates, TrainingSet
from rerankers import devices, models
from rerankers.networks.batches import score_tokenized
from rerankers.networks.inputs import Tokenized
from rerankers.networks.network import Network
from rerankers.networks.training.examples import CachedInteractions, Examples, Rows
from rerankers.networks.training.loop import History
from rerankers.networks.training.loop import train as train_loop
from rerankers.networks.training.settings import Settings
from rerankers.text.spaces import general_vectors
from rerankers.text.vectors import read_vectors
from rerankers.text.vocabulary import Idf, Vocabulary


def train(
    name: str,
    config: Any,
    training_set: TrainingSet,
    idf: Idf,
    settings: Settings,
    folds: int,
    vectors: Path,
    device: str,
) -> Outcome:
    """Train a network, with a progress bar.

    Args:
        name: of the model.
        config: its hyperparameters.
        idf: word frequencies.
        settings: of the training.
        folds: held-out parts of the topics, without a development part.
        vectors: file of word vectors, or ``NO_FILE``.
        device: to train on.
    """
    data, development, texts = training_set.training, training_set.development, training_set.texts
    known = general_vectors(texts) if vectors == NO_FILE else read_vectors(vectors)
    tokens = getattr(config, "tokens", "words")
    vocabulary = Vocabulary.build(texts, known, training_set.minimum_count, tokens=tokens)

    def build() -> Network:
        """A new network, the same at every call."""
        devices.share_threads()
        torch.manual_seed(settings.seed)
        model = models.find(name)(config, vocabulary).to(device)
        return Network(name=name, config=config, idf=idf, model=model, vocabulary=vocabulary)

    network = build()
    examples = _examples(network, data, settings)
    with step_bar(examples.steps_of_epoch(settings)) as progress:
        parts = _Parts(settings, progress)
        if development is not None:
            held_out = _examples(network, development, settings)
            rows = np.arange(len(held_out.relevant))
            epochs = parts.train("training", network, examples, held_out, development, rows).best
            figures = {"development": parts.figures["training"]}
            return parts.outcome(network, figures, epochs, vectors)
        groups = data.groups if settings.held_out_of == "each" else ()
        share, queries = settings.held_out, examples.pairs.query_index
        best = []
        for fold in split_topics(queries, folds, settings.seed, share, groups, data.twins):
            network, held_out = build(), examples.take(fold.held_out)
            training = examples.take(data.to_train(fold.training))
            history = parts.train(fold.name, network, training, held_out, data, fold.held_out)
            best.append(history.best)
        epochs = round(statistics.median(best))
        if folds > 1:
            network, rows = build(), data.to_train(np.arange(len(examples.relevant)))
            parts.settings = dataclasses.replace(settings, epochs=epochs)
            every = examples if len(rows) == len(examples.relevant) else examples.take(rows)
            parts.train("all topics", network, every)
        return parts.outcome(network, parts.figures, epochs, vectors, folds)


class _Parts:
    """Trainings of a network on parts of the topics.

    ``progress`` is called with the part's name, the epoch, the step and a message.

    Attributes:
        figures: part -> MAP of its held-out topics.
    """

    def __init__(self, settings: Settings, progress: Any) -> None:
        self._settings = self.settings = settings
        self._progress = progress
        self.figures: dict[str, float] = {}
        self._held_out_run: Run = {}
        self._histories: dict[str, Sequence[Mapping[str, float]]] = {}

    def train(
        self,
        part: str,
        network: Network,
        examples: Examples,
        held_out: Examples | None = None,
        data: JudgedCandidates | None = None,
        rows: Rows | None = None,
    ) -> History:
        """Train on a part; pairs ``rows`` of ``data``, ``held_out``, choose the epoch."""
        measure_name = "RR" if self.settings.select == "mrr" else "AP"

        def measure(scores: npt.NDArray[np.float32]) -> float:
            assert data is not None and rows is not None
            return data.mean_of(measure_name, data.run_of(rows, scores))

        progress = partial(self._progress, part)
        history = train_loop(network.model, examples, held_out, measure, self.settings, progress)
        self._histories[part] = history.epochs
        if held_out and data and rows is not None:
            run = data.run_of(rows, score_tokenized(network.model, held_out.pairs))
            self._held_out_run |= run
            self.figures[part] = data.mean_of("AP", run)
        return history

    def outcome(
        self,
        network: Network,
        figures: Mapping[str, float],
        epochs: int,
        vectors: Path,
        folds: int = 0,
    ) -> Outcome:
        """The kept network with what is known of its training."""
        record = {
            "vectors": vectors.name,
            "training": dataclasses.asdict(self._settings),
            "epochs": epochs,
            "histories": self._histories,
        }
        return Outcome(network, self._held_out_run, figures, record, folds)


def _examples(network: Network, data: JudgedCandidates, settings: Settings) -> Examples:
    """The judged candidates as the network reads them."""
    model = network.model
    pairs = Tokenized.from_pairs(data.candidates.pairs(), network.encoder, model)
    # Corrupted pairs are made during training, so they cannot be compared beforehand.
    if model.interactions_are_fixed() and settings.sampling != "corrupted":
        with bar(len(pairs.query_index), "comparing", "pair") as progress:
            compared = CachedInteractions.compute(model, pairs, progress)
        return Examples(compared, data.relevant())
    return Examples(pairs, data.relevant())
