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
from collections.abc import Callable, Mapping, Sequence
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

    Without a development part, ``folds`` parts of the topics are held out. ``vectors`` is a file of
    word vectors, or ``NO_FILE``.
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
        parts, best = _Parts(progress), []
        if development is not None:
            held_out = _examples(network, development, settings)
            rows = np.arange(len(held_out.relevant))
            chosen_by = held_out, development, rows
            best.append(parts.train("development", network, examples, settings, chosen_by).best)
        else:
            groups = data.groups if settings.held_out_of == "each" else ()
            share, queries = settings.held_out, examples.pairs.query_index
            for fold in split_topics(queries, folds, settings.seed, share, groups, data.twins):
                network, training = build(), examples.take(data.to_train(fold.training))
                chosen_by = examples.take(fold.held_out), data, fold.held_out
                best.append(parts.train(fold.name, network, training, settings, chosen_by).best)
        epochs = round(statistics.median(best))
        if len(best) > 1:
            network, rows = build(), data.to_train(np.arange(len(examples.relevant)))
            every = examples if len(rows) == len(examples.relevant) else examples.take(rows)
            final = dataclasses.replace(settings, epochs=epochs)
            parts.train("all topics", network, every, final)
    record = {
        "vectors": vectors.name,
        "training": dataclasses.asdict(settings),
        "epochs": epochs,
        "histories": parts.histories,
    }
    return Outcome(network, parts.run, parts.figures, record, 0 if development else folds)


class _Parts:
    """Trainings of a network on parts of the topics.

    ``progress`` is called with the part's name, the epoch, the step and a message.

    Attributes:
        run: scores of the held-out pairs of all parts.
        figures: part -> MAP of its held-out topics.
        histories: part -> figures of every epoch.
    """

    def __init__(self, progress: Callable[[str, int, int, str], None]) -> None:
        self._progress = progress
        self.run: Run = {}
        self.figures: dict[str, float] = {}
        self.histories: dict[str, Sequence[Mapping[str, float]]] = {}

    def train(
        self,
        part: str,
        network: Network,
        examples: Examples,
        settings: Settings,
        held_out: tuple[Examples, JudgedCandidates, Rows] | None = None,
    ) -> History:
        """Train on a part; held-out examples, rows of these candidates, choose the epoch."""
        others, data, rows = held_out or (None, None, np.zeros(0, np.int64))

        def measure(scores: npt.NDArray[np.float32]) -> float:
            assert data
            name = "RR" if settings.select == "mrr" else "AP"
            return data.mean_of(name, data.run_of(rows, scores))

        # A training that a development part stops is called ``training``.
        shown = "training" if part == "development" else part
        progress = partial(self._progress, shown)
        history = train_loop(network.model, examples, others, measure, settings, progress)
        self.histories[shown] = history.epochs
        if others and data:
            run = data.run_of(rows, score_tokenized(network.model, others.pairs))
            self.run |= run
            self.figures[part] = data.mean_of("AP", run)
        return history


def _examples(network: Network, data: JudgedCandidates, settings: Settings) -> Examples:
    """The judged candidates as the network reads them."""
    model = network.model
    pairs = Tokenized.from_pairs(data.candidates.pairs(), network.encoder, model)
    # Corrupted pairs are made during training, so they cannot be compared beforehand.
    if model.interactions_are_fixed and settings.sampling != "corrupted":
        with bar(len(pairs.query_index), "comparing", "pair") as progress:
            compared = CachedInteractions.compute(model, pairs, progress)
        return Examples(compared, data.relevant())
    return Examples(pairs, data.relevant())
