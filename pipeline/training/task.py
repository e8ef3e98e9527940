"""A training: from its options to a checkpoint folder, and what the model in it is worth."""

from __future__ import annotations

import dataclasses
import sys
from functools import cached_property
from pathlib import Path
from typing import Any

from indexes.files import atomic_directory
from pipeline import runtime
from pipeline.collections import named
from pipeline.collections.collection import Collection, is_own, models_directory
from pipeline.command.options import apply_changes
from pipeline.command.ranking import engine_of
from pipeline.errors import UsageError
from pipeline.evaluation.measures import mean
from pipeline.ranking.checkpoints import ADAPTED_SUFFIX, named_frequencies
from pipeline.ranking.fusion import Rankers
from pipeline.ranking.tuning import TUNING_FILE, Tuning
from pipeline.training import trees
from pipeline.training.folds import Outcome
from pipeline.training.fusion import fusion_training_set, window_training_set
from pipeline.training.options import TRAINING, Options, vector_file
from pipeline.training.own import calibrated, compare, own_config, own_training_set, shipped_start
from pipeline.training.training_set import (
    PriorRuns,
    TrainingSet,
    answer_training_set,
    microblog_training_set,
    searched_training_set,
)
from rerankers import checkpoint, models
from rerankers.checkpoint import ADAPTED_FILE, JUDGMENTS
from rerankers.errors import RerankerError
from rerankers.features.judged import JUDGED
from rerankers.networks.training.settings import Settings
from rerankers.text.vocabulary import Idf
from rerankers.trees.fusion import ADAPTED_FAMILY

Given = tuple[str, Any, TrainingSet, Idf]
"""Name of a model, its configuration, its training set, and word frequencies."""


def train(options: Options, own: Collection | None = None) -> Path:
    """Train a model, write its checkpoint, and print what it is worth; the folder.

    Args:
        options: model, collections and settings.
        own: collection of one's own to train on, in place of the named ones.
    """
    task = _task_of(options, own)
    directory, settings = task.directory, task.settings()
    device = runtime.choose_device(
        options.device, options.threads, models.is_network(options.model)
    )
    first_stage = task.first_stage()
    folds = min(options.folds, len(own.training_topics)) if own else options.folds
    vectors = vector_file(options)
    data = task.training_set(first_stage)
    print(f"training {options.model} on {', '.join(data.trained_on)}", file=sys.stderr)
    given = options.model, task.config, data, checkpoint.idf_from(task.idf)
    outcome = task.fit(given, settings, folds, vectors, device)
    model = dataclasses.replace(outcome.model, metrics=task.metrics(data, outcome, folds))
    extras = task.extras(outcome)
    if tuning := task.tuning(first_stage, data, outcome):
        extras[TUNING_FILE] = tuning.content()
    with atomic_directory(directory) as new:
        checkpoint.save(new, model, extras)
    for name, value in outcome.validation_map.items():
        topics = "the development part" if name == "development" else "held-out topics"
        print(f"{name}: AP {value:.4f} on {topics}")
    if epochs := outcome.record.get("epochs"):
        print(f"epochs: {epochs}")
    print(f"wrote {directory}")
    return directory


def own_collection(options: Options) -> Collection | None:
    """The own collection of ``--collection``, None for a named one."""
    if options.collection is None or not is_own(options.collection):
        return None
    found = named.find(options.collection, options.data)
    return named.on_engine(found, engine_of(options))


def _task_of(options: Options, own: Collection | None) -> _Task:
    """The training of the model, by its kind."""
    if models.is_network(options.model):
        return _NetworkTask(options, own)
    kinds = {"posts": _Task, "lists": _WindowTask, "searches": _FusionTask}
    return kinds[models.reads(options.model) or "posts"](options, own)


class _Task:
    """A training of trees on given posts: collections, configuration and files that options name.

    Attributes:
        options: of the command.
        own: collection of one's own.
        configuration: name of the configuration; None is the model's first one.
        config: the configuration with the changes of ``--set``.
        start: checkpoint of trees that are extended.
    """

    start: Path | None = None

    def __init__(self, options: Options, own: Collection | None) -> None:
        self.options, self.own = options, own
        self.configuration = options.configuration
        self.config = _config(options, self.configuration)

    def settings(self) -> Settings:
        """The settings of the training."""
        return _settings(self.options, Settings(epochs=0))

    def fit(
        self, given: Given, settings: Settings, folds: int, vectors: Path, device: str
    ) -> Outcome:
        """Train the model."""
        return trees.train(*given, settings.seed, folds, self.start)

    def metrics(self, data: TrainingSet, outcome: Outcome, folds: int) -> dict[str, Any]:
        """The content of ``metrics.json``."""
        start, of_fold = self.start, outcome.validation_map
        return {
            "model": self.options.model,
            "configuration": self.configuration or "default",
            "changed_settings": self.options.model_changes,
            "trained_on": list(data.trained_on),
            **({"collection_file": data.collection_file} if data.collection_file else {}),
            "left_out": data.left_out,
            "topics": len(data.training.candidates.topics),
            "pairs": len(data.training.candidates.keys()),
            "candidates": data.candidates,
            "started_from": start and f"{start.parent.name}/{start.name}",
            "folds": folds if data.development is None else None,
            "validation": {
                "AP": round(mean(of_fold.values()), 4),
                "by_fold": {name: round(value, 4) for name, value in of_fold.items()},
            },
            **outcome.record,
            **runtime.provenance(),
        }

    def reads(self, family: str) -> bool:
        """Whether it reads a family of features."""
        return family in getattr(self.config, "families", "").split(",")

    @property
    def directory(self) -> Path:
        """The checkpoint folder to write."""
        options, name = self.options, "all"
        if self.own:
            name = self.own.key
        elif options.collection:
            name = named.find_answers(options.collection, options.data).name
        elif options.test:
            name = named.find(options.test, options.data).name
        elif options.train_on:
            years = [named.find(name, options.data).name for name in options.train_on]
            name = "on-" + "-".join(years)
        if self.reads(ADAPTED_FAMILY):
            name += ADAPTED_SUFFIX
        return options.output or models_directory() / "checkpoints" / options.model / name

    def first_stage(self) -> TrainingSet:
        """Official or given candidates with judgments."""
        options = self.options
        if self.own:
            return own_training_set(self.own)
        if options.collection:
            collection = named.find_answers(options.collection, options.data)
            return answer_training_set(collection, draws=options.development == "drawn")
        prior_runs = PriorRuns(options.prior_runs, options.top) if options.prior_runs else None
        return microblog_training_set(options.test, options.data, options.train_on, prior_runs)

    def training_set(self, first_stage: TrainingSet) -> TrainingSet:
        """The candidates that are trained on."""
        return first_stage

    def extras(self, outcome: Outcome) -> dict[str, bytes]:
        """Further files of the checkpoint."""
        extras = {"held_out.run.gz": outcome.held_out_file()}
        if self.own and self.reads(JUDGED):
            extras[JUDGMENTS] = self.own.judged_posts.content()
        return extras

    def tuning(
        self, first_stage: TrainingSet, training_set: TrainingSet, outcome: Outcome
    ) -> Tuning | None:
        """Tuning and figures on an own collection, which are printed."""
        if self.own is None:
            return None
        is_mixed = not isinstance(self, _FusionTask)
        return compare(self.options.model, self.own, first_stage, outcome, is_mixed)

    @property
    def idf(self) -> str:
        """The source of word frequencies; for an own collection in its language."""
        return named_frequencies(self.options.idf, self.own.language if self.own else None)


class _NetworkTask(_Task):
    """A training of a network on given posts."""

    def settings(self) -> Settings:
        """The settings of the model's configuration with the changes of ``--set``."""
        model = models.find(self.options.model)
        return _settings(self.options, model.settings_of(self.options.configuration))

    def fit(
        self, given: Given, settings: Settings, folds: int, vectors: Path, device: str
    ) -> Outcome:
        """Train the model."""
        from pipeline.training import networks  # PyTorch

        return networks.train(*given, settings, folds, vectors, device)


class _FusionTask(_Task):
    """A training of trees on several searches, which may extend those of a shipped model."""

    def __init__(self, options: Options, own: Collection | None) -> None:
        if options.collection and not own:
            raise UsageError(
                f"--collection: {options.model} ranks what searches find; name the collection to "
                "leave out by --test, or the file of an own one"
            )
        self.options, self.own = options, own
        self.configuration = options.configuration or self._fusion_configuration()
        self.config = _config(options, self.configuration)
        if own and not any(change.startswith("families=") for change in options.set):
            self.config = own_config(self.config, not options.forget_topics, own.signals)
        self.start = shipped_start(options.model, self.config) if own else None

    @cached_property
    def of_fusion(self) -> list[Collection]:
        """The collections that a fusion is trained on.

        Microblog years for a microblog year, else all collections that are searched and have
        judgments.
        """
        if self.own:
            return [self.own]
        options = self.options
        test = named.find(options.test, options.data) if options.test else None
        of_any_kind = test is None or not test.runs
        names = options.train_on or named.training_collections(
            options.test, options.data, of_any_kind
        )
        collections = [named.find(name, options.data) for name in names]
        engine = engine_of(options)
        return [named.on_engine(each, engine) for each in collections if each.index]

    def _fusion_configuration(self) -> str:
        """The configuration of a fusion for the collections to train on.

        For TREC Microblog its own one; with adapted word vectors if all collections have them.
        """
        known = models.find(self.options.model).configurations
        adapted = all(collection.adapted_space for collection in self.of_fusion)
        name = "microblog" if all(collection.runs for collection in self.of_fusion) else "general"
        name = name if name in known else "general"
        with_adapted = {"general": "adapted", "microblog": "microblog_adapted"}[name]
        return with_adapted if adapted and with_adapted in known else name

    def first_stage(self) -> TrainingSet:
        """Candidates of an own collection; of others none, as searches find them."""
        if self.own:
            return super().first_stage()
        test = self.options.test
        left_out = named.find(test, self.options.data).name if test else None
        return searched_training_set([each.name for each in self.of_fusion], left_out)

    def training_set(self, first_stage: TrainingSet) -> TrainingSet:
        """Candidates of all searches, with their scores."""
        rankers = Rankers.from_config(self.config)
        return fusion_training_set(rankers, first_stage, self.of_fusion, self.reads(JUDGED))


class _WindowTask(_FusionTask):
    """A training of trees on windows of several first stages."""

    def training_set(self, first_stage: TrainingSet) -> TrainingSet:
        """Windows in all forms."""
        most = self.config.topics
        return window_training_set(first_stage, self.of_fusion, most, self.reads(JUDGED))

    def extras(self, outcome: Outcome) -> dict[str, bytes]:
        """Further files of the checkpoint; no held-out run, which has every topic many times."""
        extras = super().extras(outcome)
        extras.pop("held_out.run.gz")
        if self.own and self.reads(ADAPTED_FAMILY) and (path := self.own.adapted_file):
            extras[ADAPTED_FILE] = path.read_bytes()
        return extras

    def tuning(
        self, first_stage: TrainingSet, training_set: TrainingSet, outcome: Outcome
    ) -> Tuning | None:
        """Figures on an own collection, or on topics held out in folds."""
        model = self.options.model
        if self.own:
            return compare(model, self.own, training_set, outcome, False, beside_default=False)
        return calibrated(f"{model}/{self.directory.name}", training_set, outcome)


def _settings(options: Options, settings: Settings) -> Settings:
    """Settings with the changes of ``--set training.NAME``."""
    given = [change for change in options.set if change.startswith(TRAINING)]
    changes = [change.removeprefix(TRAINING) for change in given]
    if any(change.startswith("seed=") for change in changes):
        raise UsageError("--set training.seed: found a seed, expected it by --seed")
    if given and not settings.epochs:
        raise UsageError(
            f"--set {given[0]}: found for {options.model}, which is not trained step by step and "
            "has no use for it; change its own settings by --set NAME=VALUE"
        )
    try:
        seeded = dataclasses.replace(settings, seed=options.seed)
        changed: Settings = apply_changes(seeded, changes, prefix=TRAINING)
    except RerankerError as error:
        raise UsageError(str(error).splitlines()) from None
    if given and not changed.epochs:
        raise UsageError("--set training.epochs: found 0, expected one epoch or more")
    return changed


def _config(options: Options, configuration: str | None) -> Any:
    """The named configuration with the changes of ``--set``."""
    known = models.find(options.model).configurations
    name = configuration or next(iter(known))
    if name not in known:
        raise UsageError(f"--configuration: found {name!r}, expected one of {', '.join(known)}")
    return apply_changes(known[name], options.model_changes)
