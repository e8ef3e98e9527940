"""Training of one model: its vocabulary, its examples, its checkpoint."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from indexes.files import atomic_directory
from pipeline.collections.collection import NO_FILE
from pipeline.command import runtime
from pipeline.evaluation.measures import mean
from pipeline.ranking.checkpoints import TUNING_FILE, Tuning
from pipeline.training.folds import Outcome, Schedule, cross_train, train_with_development
from pipeline.training.training_set import JudgedCandidates, TrainingSet
from rerankers import checkpoint, models
from rerankers.base import Reranker
from rerankers.scoring.tokenized import Tokenized
from rerankers.text.inputs import TextEncoder
from rerankers.text.spaces import general_vectors
from rerankers.text.vectors import read_vectors
from rerankers.text.vocabulary import Vocabulary
from rerankers.training.examples import CachedInteractions, Examples
from rerankers.training.settings import Settings


@dataclass(frozen=True)
class TrainingOptions:
    """Options that do not depend on the model.

    ``vectors`` is None for a model that reads none; ``idf`` is a source of
    :func:`rerankers.checkpoint.idf_from`, ``start`` the checkpoint of a fusion to extend.
    """

    folds: int
    vectors: Path | None
    idf: str
    device: str
    start: Path | None = None


@dataclass(frozen=True)
class Trainer:
    """A model to train, with its configuration's name and changes for ``metrics.json``."""

    model: str
    config: Any
    settings: Settings
    training_set: TrainingSet
    options: TrainingOptions
    configuration: str = "default"
    changes: Sequence[str] = ()

    @cached_property
    def encoder(self) -> TextEncoder:
        """The vocabulary of the training texts, their vectors, and word frequencies."""
        if self.options.vectors is None:
            vocabulary = Vocabulary([], np.zeros((0, 1), dtype=np.float32))
        else:
            texts = self.training_set.texts
            is_file = self.options.vectors != NO_FILE
            vectors = read_vectors(self.options.vectors) if is_file else general_vectors(texts)
            least = self.training_set.minimum_count
            vocabulary = Vocabulary.build(texts, vectors, least)
        return TextEncoder(vocabulary, checkpoint.idf_from(self.options.idf))

    def build(self) -> Reranker:
        """A new model, the same at every call."""
        torch.manual_seed(self.settings.seed)
        model: Any = models.find(self.model)
        reranker: Any = model(self.config, self.encoder.vocabulary).to(self.options.device)
        if self.options.start:
            reranker.start_from(checkpoint.load(self.options.start, self.model).model)
        return reranker

    def train(self) -> Outcome:
        """Train, with a progress bar."""
        model, data, options = self.build(), self.training_set, self.options
        training = self._examples(model, data.training)
        parts = options.folds + (options.folds > 1) if data.development is None else 1
        steps = training.steps_of_epoch(self.settings)
        bar = runtime.step_bar(steps) if model.trained_by_gradients else runtime.part_bar(parts)
        with bar as progress:
            schedule = Schedule(self.settings, progress)
            if data.development is None:
                return cross_train(self.build, training, data.training, schedule, options.folds)
            development = self._examples(model, data.development)
            return train_with_development(model, training, development, data.development, schedule)

    def save(
        self,
        directory: Path,
        outcome: Outcome,
        extras: Mapping[str, bytes] | None = None,
        tuning: Tuning | None = None,
    ) -> None:
        """Write or replace the checkpoint folder; see :func:`rerankers.checkpoint.save`.

        ``tuning`` is written beside it.
        """
        metrics = self._metrics(outcome)
        with atomic_directory(directory) as new:
            checkpoint.save(new, self.model, outcome.model, self.encoder, metrics, extras)
            if tuning:
                tuning.save(new / TUNING_FILE)

    def _examples(self, model: Reranker, data: JudgedCandidates) -> Examples:
        tokenized = Tokenized.from_pairs(data.candidates.pairs(), self.encoder, model)
        # Corrupted pairs are made during training, so they cannot be compared beforehand.
        if model.interactions_are_fixed() and self.settings.sampling != "corrupted":
            return Examples(CachedInteractions.compute(model, tokenized), data.relevant())
        return Examples(tokenized, data.relevant())

    def _metrics(self, outcome: Outcome) -> dict[str, Any]:
        data, settings = self.training_set, dataclasses.asdict(self.settings)
        start = self.options.start
        if not outcome.model.trained_by_gradients:
            settings = {"seed": self.settings.seed}
        return {
            "model": self.model,
            "configuration": self.configuration,
            "changed_settings": list(self.changes),
            "trained_on": list(data.trained_on),
            "left_out": data.left_out,
            "topics": len(data.training.candidates.topics),
            "pairs": len(data.training.candidates.keys()),
            "candidates": data.candidates,
            "started_from": start and f"{start.parent.name}/{start.name}",
            "vectors": self.options.vectors.name if self.options.vectors else None,
            "training": settings,
            "folds": self.options.folds if data.development is None else None,
            "epochs": outcome.epochs,
            "validation": {
                "AP": round(mean(outcome.validation_map.values()), 4),
                "by_fold": {name: round(v, 4) for name, v in outcome.validation_map.items()},
            },
            "histories": {name: h.epochs for name, h in outcome.histories.items()},
            **runtime.provenance(),
        }
