"""A model trained as a command line says, and its checkpoint."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from indexes.files import atomic_directory
from pipeline.collections.locations import data_directory, home_directory
from pipeline.command.ranking import FUSIONS

if TYPE_CHECKING:
    from pipeline.train import Options
    from pipeline.training.folds import Outcome
    from pipeline.training.training_set import JudgedCandidates, TrainingSet
    from rerankers.base import Reranker
    from rerankers.text.inputs import TextEncoder
    from rerankers.training.loop import Examples
    from rerankers.training.settings import Settings


@dataclass(frozen=True)
class Trainer:
    """What is trained, how, and on what.

    Attributes:
        options: of the command.
        settings: how to train.
        config: the model's hyperparameters.
        training_set: what to learn from.
        device: where to train.
    """

    options: "Options"
    settings: "Settings"
    config: Any
    training_set: "TrainingSet"
    device: str

    @cached_property
    def vectors(self) -> Path:
        """The file of word vectors."""
        return vectors_of(self.options, self.training_set)

    @cached_property
    def encoder(self) -> "TextEncoder":
        """The vocabulary of the training texts, their vectors, and word frequencies."""
        from rerankers.checkpoint import idf_from
        from rerankers.text.inputs import TextEncoder
        from rerankers.text.vectors import read_vectors
        from rerankers.text.vocabulary import Vocabulary

        vectors = read_vectors(self.vectors)
        vocabulary = Vocabulary.build(
            self.training_set.texts, vectors, self.training_set.minimum_count
        )
        return TextEncoder(vocabulary, idf_from(self.options.idf))

    def build(self) -> "Reranker":
        """A new model, the same one at every call."""
        import torch

        from rerankers import models

        torch.manual_seed(self.options.seed)
        model: Any = models.find(self.options.model)
        reranker: Reranker = model(self.config, self.encoder.vocabulary).to(self.device)
        return reranker

    def train(self, state_directory: Path) -> "Outcome":
        """Train, with a progress bar.

        Args:
            state_directory: what is finished is kept there, and ``--resume`` goes on with it.
        """
        from pipeline.command import runtime
        from pipeline.training.folds import cross_train, develop

        model, data, resume = self.build(), self.training_set.training, self.options.resume
        training = self._examples(model, data)
        with runtime.step_bar(self.settings.steps) as progress:
            if self.training_set.development is None:
                return cross_train(
                    self.build, training, data, self.settings, self.options.folds,
                    state_directory, resume, progress,
                )  # fmt: skip
            return develop(
                model, training, self._examples(model, self.training_set.development),
                self.training_set.development, self.settings, state_directory, resume, progress,
            )  # fmt: skip

    def _examples(self, model: "Reranker", data: "JudgedCandidates") -> "Examples":
        from rerankers.engine.tokenized import Tokenized
        from rerankers.training.examples import CachedInteractions
        from rerankers.training.loop import Examples

        encoded = Tokenized.of(data.candidates.pairs(), self.encoder, model)
        # Corrupted pairs are made while training, so they cannot have been compared before.
        if model.interactions_are_fixed() and self.settings.sampling != "corrupted":
            return Examples(CachedInteractions.compute(model, encoded), data.relevant())
        return Examples(encoded, data.relevant())

    def save(
        self, directory: Path, outcome: "Outcome", extras: Mapping[str, bytes] | None = None,
        parts: Mapping[str, Path] | None = None,
    ) -> None:  # fmt: skip
        """Write or replace the checkpoint folder; see :func:`rerankers.checkpoint.save`."""
        from rerankers import checkpoint

        name, metrics = self.options.model, self._metrics(outcome)
        with atomic_directory(directory) as new:
            checkpoint.save(new, name, outcome.model, self.encoder, metrics, extras, parts)

    def _metrics(self, outcome: "Outcome") -> dict[str, Any]:
        from pipeline.command import runtime
        from pipeline.evaluation.measures import mean

        training_set, options = self.training_set, self.options
        candidates = training_set.training.candidates
        return {
            "model": options.model,
            "configuration": options.configuration or "default",
            "changed_settings": list(options.set),
            "trained_on": list(training_set.trained_on),
            "left_out": options.test,
            "topics": len(candidates.topics),
            "pairs": len(candidates.keys()),
            "candidates": training_set.candidates,
            "vectors": self.vectors.name,
            "training": dataclasses.asdict(self.settings)
            if outcome.model.trained_by_gradients
            else {"seed": self.settings.seed},
            "folds": options.folds if training_set.development is None else None,
            "epochs": outcome.epochs,
            "validation": {
                "AP": round(mean(outcome.validation_map.values()), 4),
                "by_fold": {name: round(v, 4) for name, v in outcome.validation_map.items()},
            },
            "histories": {name: h.epochs for name, h in outcome.histories.items()},
            **runtime.provenance(),
        }


def vectors_of(options: "Options", training_set: "TrainingSet") -> Path:
    """The file of word vectors; those of a fusion, and of what it trains, know the posts."""
    from pipeline import vectors

    general = data_directory(options.data) / "embeddings" / "glove.6B.100d.bin.gz"
    if options.vectors is None and options.model in FUSIONS:
        return vectors.cached_vectors(training_set.texts, general, home_directory())
    return options.vectors or general
