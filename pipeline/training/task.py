"""A training: from its options to a checkpoint folder, and what the model in it is worth."""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.collections import named
from pipeline.collections.collection import (
    NO_FILE,
    Collection,
    default_vectors,
    is_own,
    models_directory,
)
from pipeline.command.options import (
    apply_changes,
    argument,
    existing_file,
    non_negative_int,
    option,
    positive_int,
)
from pipeline.command.ranking import EngineOptions, engine_of
from pipeline.errors import UsageError
from rerankers.networks.training.settings import Settings

if TYPE_CHECKING:
    from pipeline.ranking.checkpoints import Tuning
    from pipeline.training.folds import Outcome
    from pipeline.training.trainer import Trainer
    from pipeline.training.training_set import TrainingSet

TRAINING = "training."  # Before the name of a setting of the training
SETTINGS = [field.name for field in dataclasses.fields(Settings) if field.name != "seed"]


@dataclass(frozen=True)
class TrainingDataOptions:
    """Collections to train on."""

    test: str | None = option("collection to leave out; without it all judged ones are trained on")
    collection: str | None = option(
        "collection with a training part (trecqa-raw, trecqa-all-clean, wikiqa, …) to train on, or "
        "file of an own one with judgments",
        metavar="NAME|FILE",
    )
    development: str = option(
        "candidates of its development part, which stops the training: given, or drawn (each "
        "right answer and five of other questions)",
        default="given",
        choices=("given", "drawn"),
    )
    train_on: tuple[str, ...] = option(
        "train on these microblog collections alone", many=True, following=True, metavar="NAME"
    )
    forget_topics: bool = option(
        "keep no topics and judgments of an own collection in the checkpoint of a fusion or of "
        "window, which then cannot read what other topics' judgments say of a post",
        flag=True,
    )
    prior_runs: tuple[Path, ...] = option(
        "runs whose ranks are the prior of training pairs, for sm_cnn (default: the official runs)",
        parse=existing_file,
        many=True,
        following=True,
        metavar="RUN",
    )
    top: int | None = option(
        "read only so many runs of --prior-runs, the best by P@30 on the training topics",
        parse=positive_int,
    )
    folds: int = option(
        "held-out parts of the topics; 1 holds out a share once (without --collection)",
        default=5,
        parse=positive_int,
    )


@dataclass(frozen=True)
class ModelSettingsOptions:
    """Configuration of the model, and of its training."""

    configuration: str | None = option("named configuration of the model (default: its first)")
    set: tuple[str, ...] = option(
        "change one setting of the configuration, NAME=VALUE, or of the training, "
        "training.NAME=VALUE (default: as in the model's paper): "
        f"{', '.join(SETTINGS)}; may be given several times",
        many=True,
        metavar="NAME=VALUE",
    )
    vectors: Path | None = option(
        "word vectors: general (those of the package wordllama, for any word), or a file, word2vec "
        ".bin or GloVe text, .gz or not, or its name in the folder embeddings of the data "
        "(default: its glove.6B.100d.bin.gz, or general without that file)",
        parse=Path,
    )
    idf: str = option(
        "word frequencies: wordfreq or a file (N, then word<TAB>df)", default="wordfreq"
    )
    seed: int = option("seed of every random choice", default=1, parse=non_negative_int)


@dataclass(frozen=True)
class Options(EngineOptions, ModelSettingsOptions, TrainingDataOptions):
    """The model, where candidates are searched, and what a training reads and writes."""

    model: str = argument("model to train: a file of rerankers/networks/models or rerankers/trees")
    device: str = option("where to train", default="auto", choices=("auto", "cpu", "cuda"))
    threads: int | None = option("CPU threads (default: all cores)", parse=positive_int)
    data: Path | None = option("data folder (default: $TWEETRERANK_DATA)", parse=Path)
    output: Path | None = option("checkpoint folder to write", parse=Path)

    @property
    def model_changes(self) -> list[str]:
        """Changes of the model's configuration."""
        return [change for change in self.set if not change.startswith(TRAINING)]


def train(options: Options, own: Collection | None = None) -> Path:
    """Train a model, write its checkpoint, and print what it is worth; the folder.

    Args:
        options: model, collections and settings.
        own: collection of one's own to train on, in place of the named ones.
    """
    from pipeline import runtime
    from pipeline.training.trainer import TrainingOptions

    task = _task_of(options, own)
    directory, settings = task.directory, task.settings()
    device = runtime.choose_device(options.device, options.threads, task.is_network)
    first_stage = task.first_stage()
    shared = TrainingOptions(
        min(options.folds, len(own.training_topics)) if own else options.folds,
        _vector_file(options),
        task.idf,
        device,
        task.start,
    )
    training_set = task.training_set(first_stage)
    print(f"training {options.model} on {', '.join(training_set.trained_on)}", file=sys.stderr)
    trainer = task.trainer(
        options.model,
        task.config,
        settings,
        training_set,
        shared,
        task.configuration or "default",
        options.model_changes,
    )
    outcome = trainer.train()
    extras = task.extras(outcome)
    trainer.save(directory, outcome, extras, task.tuning(first_stage, training_set, outcome))
    for name, value in outcome.validation_map.items():
        topics = "the development part" if name == "development" else "held-out topics"
        print(f"{name}: AP {value:.4f} on {topics}")
    if outcome.epochs:
        print(f"epochs: {outcome.epochs}")
    print(f"wrote {directory}")
    return directory


def check(options: Options) -> None:
    """Raise UsageError for an unknown model or options that exclude each other."""
    from rerankers import models

    if options.model not in models.names():
        raise UsageError(
            f"model: found {options.model!r}, expected one of {', '.join(models.names())}"
        )
    if options.vectors not in (None, NO_FILE) and not _vector_file(options).is_file():
        folder = default_vectors(options.data).parent
        raise UsageError(
            f"--vectors: there is no file {options.vectors}, neither here nor in {folder}"
        )
    if options.development != "given" and not options.collection:
        raise UsageError("--development: found no --collection, whose development part it is")
    if options.test and options.collection:
        raise UsageError("--test and --collection: found both, expected one of them")
    if options.collection and (options.train_on or options.prior_runs):
        raise UsageError(
            "--collection: found with --train-on or --prior-runs, which choose microblog "
            "collections and their runs; expected either"
        )
    if options.top and not options.prior_runs:
        raise UsageError("--top: found without --prior-runs, of which it takes the best")


def own_collection(options: Options) -> Collection | None:
    """The own collection of ``--collection``, None for a named one."""
    if options.collection is None or not is_own(options.collection):
        return None
    found = named.find(options.collection, options.data)
    return named.on_engine(found, engine_of(options))


def _task_of(options: Options, own: Collection | None) -> _Task:
    """The training of the model, by its kind."""
    from rerankers import models

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

    is_network = False
    start: Path | None = None

    def __init__(self, options: Options, own: Collection | None) -> None:
        self.options, self.own = options, own
        self.configuration = options.configuration
        self.config = _config(options, self.configuration)

    def settings(self) -> Settings:
        """The settings of the training."""
        return _settings(self.options, Settings(epochs=0))

    @property
    def trainer(self) -> type[Trainer]:
        """Class of the trainer."""
        from pipeline.training.trainer import TreesTrainer

        return TreesTrainer

    @property
    def reads_adapted(self) -> bool:
        """Whether it reads word vectors adapted to the collection."""
        from rerankers.trees.fusion import ADAPTED_FAMILY

        return ADAPTED_FAMILY in getattr(self.config, "families", "")

    @property
    def reads_judged(self) -> bool:
        """Whether it reads what judgments of other topics say of a post."""
        from rerankers.features.judged import JUDGED

        return JUDGED in getattr(self.config, "families", "").split(",")

    @property
    def directory(self) -> Path:
        """The checkpoint folder to write."""
        from pipeline.ranking.checkpoints import ADAPTED_SUFFIX

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
        if self.reads_adapted:
            name += ADAPTED_SUFFIX
        return options.output or models_directory() / "checkpoints" / options.model / name

    def first_stage(self) -> TrainingSet:
        """Official or given candidates with judgments."""
        from pipeline.training.own import own_training_set
        from pipeline.training.training_set import (
            PriorRuns,
            answer_training_set,
            microblog_training_set,
        )

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
        from rerankers.checkpoint import JUDGMENTS

        extras = {"held_out.run.gz": outcome.held_out_file()}
        if self.own and self.reads_judged:
            extras[JUDGMENTS] = self.own.judged_posts.content()
        return extras

    def tuning(
        self, first_stage: TrainingSet, training_set: TrainingSet, outcome: Outcome
    ) -> Tuning | None:
        """Tuning and figures on an own collection, which are printed."""
        return self._compared(first_stage, outcome, is_mixed=True, beside_default=True)

    def _compared(self, candidates: TrainingSet, outcome: Outcome, **how: bool) -> Tuning | None:
        from pipeline.training.own import compare

        if self.own is None:
            return None
        return compare(self.options.model, self.own, candidates, outcome, **how)

    @property
    def idf(self) -> str:
        """The source of word frequencies; for an own collection in its language."""
        from pipeline.ranking.checkpoints import named_frequencies

        return named_frequencies(self.options.idf, self.own.language if self.own else None)


class _NetworkTask(_Task):
    """A training of a network on given posts."""

    is_network = True

    def settings(self) -> Settings:
        """The settings of the model's configuration with the changes of ``--set``."""
        from rerankers import models

        model = models.find(self.options.model)
        return _settings(self.options, model.settings_of(self.options.configuration))

    @property
    def trainer(self) -> type[Trainer]:
        """Class of the trainer."""
        from pipeline.training.trainer import NetworkTrainer

        return NetworkTrainer


class _FusionTask(_Task):
    """A training of trees on several searches, which may extend those of a shipped model."""

    def __init__(self, options: Options, own: Collection | None) -> None:
        from pipeline.training.own import own_config, shipped_start

        if options.collection and not own:
            raise UsageError(
                f"--collection: {options.model} ranks what searches find; name the collection to "
                "leave out by --test, or the file of an own one"
            )
        self.options, self.own = options, own
        self.configuration = options.configuration or self._fusion_configuration()
        self.config = _config(options, self.configuration)
        if own and not any(change.startswith("families=") for change in options.set):
            self.config = own_config(self.config, not options.forget_topics)
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
        from rerankers import models

        known = models.find(self.options.model).configurations
        adapted = all(collection.adapted_space for collection in self.of_fusion)
        name = "microblog" if all(collection.runs for collection in self.of_fusion) else "general"
        name = name if name in known else "general"
        with_adapted = {"general": "adapted", "microblog": "microblog_adapted"}[name]
        return with_adapted if adapted and with_adapted in known else name

    def first_stage(self) -> TrainingSet:
        """Candidates of an own collection; of others none, as searches find them."""
        from pipeline.training.training_set import searched_training_set

        if self.own:
            return super().first_stage()
        test = self.options.test
        left_out = named.find(test, self.options.data).name if test else None
        return searched_training_set([each.name for each in self.of_fusion], left_out)

    def training_set(self, first_stage: TrainingSet) -> TrainingSet:
        """Candidates of all searches, with their scores."""
        from pipeline.ranking.fusion import Rankers
        from pipeline.training.fusion import fusion_training_set

        rankers = Rankers.from_config(self.config)
        return fusion_training_set(rankers, first_stage, self.of_fusion, self.reads_judged)

    def tuning(
        self, first_stage: TrainingSet, training_set: TrainingSet, outcome: Outcome
    ) -> Tuning | None:
        """Figures on an own collection."""
        return self._compared(first_stage, outcome, is_mixed=False, beside_default=True)


class _WindowTask(_FusionTask):
    """A training of trees on windows of several first stages."""

    def training_set(self, first_stage: TrainingSet) -> TrainingSet:
        """Windows in all forms."""
        from pipeline.training.fusion import window_training_set

        most = self.config.topics
        return window_training_set(first_stage, self.of_fusion, most, self.reads_judged)

    def extras(self, outcome: Outcome) -> dict[str, bytes]:
        """Further files of the checkpoint; no held-out run, which has every topic many times."""
        from rerankers.checkpoint import ADAPTED_FILE

        extras = super().extras(outcome)
        extras.pop("held_out.run.gz")
        if self.own and self.reads_adapted and (path := self.own.adapted_file):
            extras[ADAPTED_FILE] = path.read_bytes()
        return extras

    def tuning(
        self, first_stage: TrainingSet, training_set: TrainingSet, outcome: Outcome
    ) -> Tuning | None:
        """Figures on an own collection, or on topics held out in folds."""
        from pipeline.training.own import calibrated

        if self.own:
            return self._compared(training_set, outcome, is_mixed=False, beside_default=False)
        return calibrated(f"{self.options.model}/{self.directory.name}", training_set, outcome)


def _vector_file(options: Options) -> Path:
    """The file of ``--vectors``, in the data folder if it is not found elsewhere."""
    default, given = default_vectors(options.data), options.vectors
    if given is None:
        return default if default.is_file() else NO_FILE
    if given == NO_FILE:
        return NO_FILE
    return given if given.is_file() else default.parent / given


def _settings(options: Options, settings: Settings) -> Settings:
    """Settings with the changes of ``--set training.NAME``."""
    from rerankers.errors import RerankerError

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
    from rerankers import models

    known = models.find(options.model).configurations
    name = configuration or next(iter(known))
    if name not in known:
        raise UsageError(f"--configuration: found {name!r}, expected one of {', '.join(known)}")
    return apply_changes(known[name], options.model_changes)
