"""Training of one model: its vocabulary, its examples, its checkpoint."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from indexes.files import atomic_directory
from pipeline import runtime
from pipeline.collections.collection import NO_FILE
from pipeline.evaluation.measures import mean
from pipeline.ranking.checkpoints import TUNING_FILE, Tuning
from pipeline.training import trees
from pipeline.training.folds import Outcome
from pipeline.training.training_set import TrainingSet
from rerankers import checkpoint, devices, models
from rerankers.networks.training.settings import Settings
from rerankers.text.spaces import general_vectors
from rerankers.text.vectors import read_vectors
from rerankers.text.vocabulary import Idf, Vocabulary

if TYPE_CHECKING:
    from rerankers.networks.network import Network
    from rerankers.trees.boosting import Trees


@dataclass(frozen=True)
class TrainingOptions:
    """Options that do not depend on the model.

    ``vectors`` and ``device`` are those of a network; ``idf`` is a source of
    :func:`rerankers.checkpoint.idf_from`, ``start`` the checkpoint of trees to extend.
    """

    folds: int
    vectors: Path
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
    def idf(self) -> Idf:
        """Word frequencies."""
        return checkpoint.idf_from(self.options.idf)

    def train(self) -> Outcome:
        """Train, with a progress bar."""
        raise NotImplementedError

    def record(self, outcome: Outcome) -> dict[str, Any]:
        """Facts of the training, for ``metrics.json``."""
        raise NotImplementedError

    def save(
        self,
        directory: Path,
        outcome: Outcome,
        extras: Mapping[str, bytes] | None = None,
        tuning: Tuning | None = None,
    ) -> None:
        """Write or replace the checkpoint folder; see :func:`rerankers.checkpoint.save`.

        ``tuning`` is one of its files.
        """
        with atomic_directory(directory) as new:
            tuned = {TUNING_FILE: tuning.content()} if tuning else {}
            model = replace(outcome.model, metrics=self._metrics(outcome))
            checkpoint.save(new, model, {**(extras or {}), **tuned})

    def _metrics(self, outcome: Outcome) -> dict[str, Any]:
        data, start = self.training_set, self.options.start
        return {
            "model": self.model,
            "configuration": self.configuration,
            "changed_settings": list(self.changes),
            "trained_on": list(data.trained_on),
            **({"collection_file": data.collection_file} if data.collection_file else {}),
            "left_out": data.left_out,
            "topics": len(data.training.candidates.topics),
            "pairs": len(data.training.candidates.keys()),
            "candidates": data.candidates,
            "started_from": start and f"{start.parent.name}/{start.name}",
            "folds": self.options.folds if data.development is None else None,
            "validation": {
                "AP": round(mean(outcome.validation_map.values()), 4),
                "by_fold": {name: round(v, 4) for name, v in outcome.validation_map.items()},
            },
            **self.record(outcome),
            **runtime.provenance(),
        }


class TreesTrainer(Trainer):
    """Trainer of boosted trees."""

    def train(self) -> Outcome:
        """Train, with a progress bar."""
        data, options = self.training_set, self.options
        start = checkpoint.load(options.start, self.model) if options.start else None
        parts = options.folds + (options.folds > 1) if data.development is None else 1
        with runtime.part_bar(parts) as progress:
            return trees.train(
                self.model,
                self.config,
                self.idf,
                data,
                options.folds,
                self.settings.seed,
                cast("Trees | None", start),
                progress,
            )

    def record(self, outcome: Outcome) -> dict[str, Any]:
        """Seed of the training."""
        return {"training": {"seed": self.settings.seed}}


class NetworkTrainer(Trainer):
    """Trainer of networks."""

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The words of the training texts, with their vectors."""
        texts = self.training_set.texts
        is_file = self.options.vectors != NO_FILE
        vectors = read_vectors(self.options.vectors) if is_file else general_vectors(texts)
        tokens = getattr(self.config, "tokens", "words")
        return Vocabulary.build(texts, vectors, self.training_set.minimum_count, tokens=tokens)

    def build(self) -> Network:
        """A new network, the same at every call."""
        import torch

        from rerankers.networks.network import Network

        devices.share_threads()
        torch.manual_seed(self.settings.seed)
        model = models.find(self.model)(self.config, self.vocabulary).to(self.options.device)
        known = {"name": self.model, "config": self.config, "idf": self.idf}
        return Network(model=model, vocabulary=self.vocabulary, **known)

    def train(self) -> Outcome:
        """Train, with a progress bar."""
        from pipeline.training import networks

        data, network = self.training_set, self.build()
        training = networks.examples_of(network, data.training, self.settings)
        with runtime.step_bar(training.steps_of_epoch(self.settings)) as progress:
            schedule = networks.Schedule(self.settings, progress)
            if data.development is None:
                folds = self.options.folds
                return networks.cross_train(self.build, training, data.training, schedule, folds)
            development = networks.examples_of(network, data.development, self.settings)
            return networks.train_with_development(
                network, training, development, data.development, schedule
            )

    def record(self, outcome: Outcome) -> dict[str, Any]:
        """Vectors, settings and figures of all epochs."""
        return {
            "vectors": self.options.vectors.name,
            "training": dataclasses.asdict(self.settings),
            "epochs": outcome.epochs,
            "histories": outcome.histories,
        }
