"""Train networks, where held-out topics stop the training of each fold early.

The final network is trained on all topics, for the median of the folds' best epochs.
"""

import dataclasses
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tweetrerank.pipeline.collections.folders import NO_FILE
from tweetrerank.pipeline.runtime import bar, step_bar
from tweetrerank.pipeline.training.training_set import JudgedCandidates
from tweetrerank.pipeline.training.validation import Outcome, Plan, validated
from tweetrerank.rerankers import devices, registry
from tweetrerank.rerankers.networks.inputs import Tokenized
from tweetrerank.rerankers.networks.network import Network, score_tokenized
from tweetrerank.rerankers.networks.training.examples import Examples, compared_once
from tweetrerank.rerankers.networks.training.loop import train as train_loop
from tweetrerank.rerankers.networks.training.training_settings import Settings
from tweetrerank.rerankers.text.ragged import Rows
from tweetrerank.rerankers.text.spaces import general_vectors
from tweetrerank.rerankers.text.vectors import read_vectors
from tweetrerank.rerankers.text.vocabulary import Vocabulary

Floats = npt.NDArray[np.float32]
StepProgress = Callable[[str, int, int, str], None]
"""Called with the name of the part, the epoch, the step and a message."""


def train(plan: Plan, vectors: Path, device: str) -> Outcome:
    """Train a network on ``device``.

    ``vectors`` is a file of word vectors, or ``NO_FILE`` for the general ones.
    """
    trainer = _Trainer(plan, vectors, device)
    steps = trainer.examples.steps_of_epoch(plan.settings)
    with step_bar(steps) as progress:
        return validated(plan, trainer.record, partial(trainer.fit, progress))


class _Trainer:
    """Trains a network on each part of a training set in turn."""

    def __init__(self, plan: Plan, vectors: Path, device: str) -> None:
        self._plan = plan
        self._device = device
        self._data = plan.data.training
        self._vocabulary = _vocabulary(plan, vectors)
        self._best_epochs: list[int] = []
        self._histories: dict[str, Any] = {}
        self.examples = _examples(self._build(), self._data, plan.settings)
        self.record: dict[str, Any] = {
            "vectors": vectors.name,
            "training": dataclasses.asdict(plan.settings),
            "epochs": 0,
            "histories": self._histories,
        }

    def fit(
        self,
        progress: StepProgress,
        part: str,
        rows: Rows,
        held_out: JudgedCandidates,
        held_out_rows: Rows,
    ) -> tuple[Network, Floats]:
        """Train on the pairs ``rows``.

        Return (the network, its scores of the held-out pairs). Without held-out pairs
        there are no scores, and the number of epochs is that of the earlier parts.
        """
        network = self._build()
        settings = self._plan.settings
        training = self.examples
        if len(rows) < len(training.relevant):
            training = training.take(rows)
        validation = None
        if held_out is not self._data:
            validation = _examples(network, held_out, settings)
        elif len(held_out_rows):
            validation = self.examples.take(held_out_rows)
        else:
            settings = dataclasses.replace(settings, epochs=self.record["epochs"])

        def measure(scores: Floats) -> float:
            name = "RR" if settings.select == "mrr" else "AP"
            return held_out.mean_of(name, held_out.run_of(held_out_rows, scores))

        report = partial(progress, part)
        history = train_loop(
            network.model, training, validation, measure, settings, report
        )
        self._histories[part] = history.epochs
        if validation is None:
            return network, np.zeros(0, np.float32)
        self._best_epochs.append(history.best)
        self.record["epochs"] = round(statistics.median(self._best_epochs))
        return network, score_tokenized(network.model, validation.pairs)

    def _build(self) -> Network:
        """Return an untrained network. It has the same weights at every call."""
        plan = self._plan
        devices.share_threads()
        torch.manual_seed(plan.settings.seed)
        kind = registry.find(plan.model)
        return Network(
            model=kind(plan.config, self._vocabulary).to(self._device),
            vocabulary=self._vocabulary,
            name=plan.model,
            config=plan.config,
            idf=plan.idf,
        )


def _vocabulary(plan: Plan, vectors: Path) -> Vocabulary:
    """Return the vocabulary of the training texts, with word vectors."""
    texts = plan.data.texts
    word_vectors = (
        general_vectors(texts) if vectors == NO_FILE else read_vectors(vectors)
    )
    # Words that occur in a single post are treated as unknown words, without vectors.
    minimum = 1 if plan.data.development else 2
    tokens = getattr(plan.config, "tokens", "words")
    return Vocabulary.build(texts, word_vectors, minimum, tokens=tokens)


def _examples(network: Network, data: JudgedCandidates, settings: Settings) -> Examples:
    """Return the judged candidates in the form that the network reads."""
    model = network.model
    pairs = Tokenized.from_pairs(data.candidates.pairs(), network.encoder, model)
    # Corrupted pairs are made during training, so they cannot be compared in advance.
    if model.interactions_are_fixed and settings.sampling != "corrupted":
        with bar(len(pairs.query_index), "comparing", "pair") as progress:
            pairs = compared_once(model, pairs, progress)
    return Examples(pairs, data.relevant())
