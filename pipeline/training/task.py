"""Run a training: from its options to a checkpoint folder and the model's gain."""

import dataclasses
import gzip
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tweetrerank.indexes.files import atomic_directory
from tweetrerank.pipeline import runtime
from tweetrerank.pipeline.collections import named
from tweetrerank.pipeline.collections.collection import Collection
from tweetrerank.pipeline.collections.folders import (
    NO_FILE,
    default_vectors,
    models_directory,
)
from tweetrerank.pipeline.collections.own import is_own
from tweetrerank.pipeline.collections.trec import format_run
from tweetrerank.pipeline.command.options import apply_changes
from tweetrerank.pipeline.evaluation.measures import mean
from tweetrerank.pipeline.ranking.checkpoints import ADAPTED_SUFFIX
from tweetrerank.pipeline.ranking.frequencies import file_of, named_frequencies
from tweetrerank.pipeline.ranking.fusion_ranker import (
    OFFICIAL,
    SIGNAL,
    UnionRetriever,
)
from tweetrerank.pipeline.ranking.ranking_options import engine_of
from tweetrerank.pipeline.text import did_you_mean, say
from tweetrerank.pipeline.training import training_set, trees
from tweetrerank.pipeline.training.cross_validation import (
    HELD_OUT_FILE,
    HeldOut,
    compare,
)
from tweetrerank.pipeline.training.fusion_lists import fusion_lists
from tweetrerank.pipeline.training.training_options import TRAINING, Options
from tweetrerank.pipeline.training.training_set import TrainingSet
from tweetrerank.pipeline.training.validation import Outcome, Plan
from tweetrerank.pipeline.training.window_lists import BATCHES, window_lists
from tweetrerank.pipeline.usage_error import UsageError
from tweetrerank.rerankers import checkpoint, registry
from tweetrerank.rerankers.checkpoint import (
    ADAPTED_FILE,
    FREQUENCIES,
    GENERAL,
    JUDGMENTS,
    OF_POSTS,
)
from tweetrerank.rerankers.features.judged import JUDGED
from tweetrerank.rerankers.model import TUNING_FILE, Reads
from tweetrerank.rerankers.networks.training.training_settings import Settings
from tweetrerank.rerankers.pairs import NUMBER
from tweetrerank.rerankers.reranker_error import RerankerError
from tweetrerank.rerankers.trees.fusion import ADAPTED_FAMILY


class _Material(NamedTuple):
    """Configuration and data of a training. For the fields see :class:`Plan`."""

    configuration: str | None
    config: Any
    data: TrainingSet
    first_stage: TrainingSet
    start: Path | None = None


def train(options: Options, own: Collection | None = None) -> Path:
    """Train a model, and return the folder of its checkpoint.

    ``own`` is a user's collection to train on. The options may name it instead. Raises
    UsageError listing every problem found in the options.
    """
    _check(options)
    if options.collection and is_own(options.collection):
        collection = named.find(options.collection, options.data)
        own = named.on_engine(collection, engine_of(options))
    is_network = registry.is_network(options.model)
    settings = _settings(options)
    device = runtime.choose_device(options.device, options.threads, is_network)
    plan = _plan(options, own, settings)
    say(f"training {plan.model} on {', '.join(plan.data.trained_on)}")
    if is_network:
        from tweetrerank.pipeline.training import networks  # PyTorch

        outcome = networks.train(plan, _vector_file(options), device)
    else:
        outcome = trees.train(plan)
    directory = _directory(options, own, plan)
    metrics = _metrics(options, own, plan, outcome)
    model = dataclasses.replace(outcome.model, metrics=metrics)
    files = _files(f"{plan.model}/{directory.name}", own, plan, outcome)
    with atomic_directory(directory) as new:
        checkpoint.save(new, model, files)
    _print_figures(outcome, plan.data)
    print(f"wrote {directory}")
    return directory


def _check(options: Options) -> None:
    """Raise UsageError for an unknown model, or if options contradict one another."""
    names = registry.names()
    if options.model not in names:
        raise UsageError(
            f"model: found {options.model!r}, expected one of {', '.join(names)}"
            f"{did_you_mean(options.model, names)}"
        )
    problems = list(_contradictions(options))
    vectors = _vector_file(options)
    if vectors != NO_FILE and not vectors.is_file():
        folder = default_vectors(options.data).parent
        problems.insert(
            0,
            f"--vectors: there is no file {options.vectors}, neither here nor in "
            f"{folder}",
        )
    if problems:
        raise UsageError(problems)


def _contradictions(options: Options) -> Iterator[str]:
    """Yield a message for each pair of options that exclude each other."""
    if options.collection:
        if options.test:
            yield "--test and --collection: found both, expected one of them"
        if options.train_on or options.prior_runs:
            yield (
                "--collection: found with --train-on or --prior-runs, which choose "
                "microblog collections and their runs; expected either"
            )
    else:
        if options.development != "given":
            yield ("--development: found no --collection, whose development part it is")
        if options.idf == OF_POSTS:
            yield (
                "--idf posts: found without --collection, whose posts they are of; "
                "window needs no --idf"
            )
    if options.top and not options.prior_runs:
        yield "--top: found without --prior-runs, of which it takes the best"


def _vector_file(options: Options) -> Path:
    """Return the file that ``--vectors`` names.

    It is looked for in the data folder if it is not found here. Without the option, it
    is the default file, or ``NO_FILE`` if that is missing.
    """
    default = default_vectors(options.data)
    chosen = options.vectors
    if chosen is None:
        return default if default.is_file() else NO_FILE
    if chosen == NO_FILE or chosen.is_file():
        return chosen
    return default.parent / chosen


def _plan(options: Options, own: Collection | None, settings: Settings) -> Plan:
    """Return the plan of the training: its settings, configuration and data."""
    reads: Reads = registry.reads(options.model) or "posts"
    if reads == "posts":
        material = _of_posts(options, own)
    else:
        material = _of_lists(options, own, reads)
    # Posts of microblog years come from judged pools, in which the words of the topics
    # are more frequent than elsewhere.
    has_posts = reads == "lists" and (own or material.data.training.groups)
    source = options.idf or (OF_POSTS if has_posts else GENERAL)
    folds = options.folds
    if own:
        folds = min(folds, len(own.training_topics))
    idf = checkpoint.idf_from(named_frequencies(source, own))
    return Plan(options.model, settings, folds, idf, *material)


def _of_posts(options: Options, own: Collection | None) -> _Material:
    """Return the material for a model of posts.

    The candidates are those of a user's first stage, given ones, or official ones.
    """
    config = _config(options, options.configuration)
    if own:
        data = training_set.own_training_set(own)
        if registry.is_network(options.model):
            data = dataclasses.replace(data, texts=[post.text for post in own.posts()])
    elif options.collection:
        collection = named.find_answers(options.collection, options.data)
        draws = options.development == "drawn"
        data = training_set.answer_training_set(collection, draws)
    else:
        data = training_set.microblog_training_set(
            options.test,
            options.data,
            options.train_on,
            options.prior_runs,
            options.top,
        )
    return _Material(options.configuration, config, data, data)


def _of_lists(options: Options, own: Collection | None, reads: Reads) -> _Material:
    """Return the material for a model of lists or of several searches.

    A training on a user's collection extends shipped trees.
    """
    if options.collection and not own:
        raise UsageError(
            f"--collection: {options.model} ranks what searches find; name the "
            "collection to leave out by --test, or the file of an own one"
        )
    # Report mistakes in settings before data is read.
    _config(options, options.configuration)
    test = named.find(options.test, options.data) if options.test else None
    collections = [own] if own else _judged(options, test, reads)
    configuration = options.configuration
    if not configuration:
        configuration = _list_configuration(options.model, collections)
    config = _config(options, configuration)
    if own:
        return _of_own_lists(options, own, reads, configuration, config)
    data = _list_data(options, collections, reads, config, test)
    return _Material(configuration, config, data, data)


def _of_own_lists(
    options: Options, own: Collection, reads: Reads, configuration: str, config: Any
) -> _Material:
    """Return lists of a user's collection, the baseline, and the trees to extend."""
    config = _own_config(options, own, config)
    # This call checks judgments and numbers before the long work.
    baseline = training_set.own_training_set(own)
    data = _list_data(options, [own], reads, config)
    if reads == "lists":
        baseline = data
    start = _shipped_start(options.model, config)
    return _Material(configuration, config, data, baseline, start)


def _list_data(
    options: Options,
    collections: Sequence[Collection],
    reads: Reads,
    config: Any,
    test: Collection | None = None,
) -> TrainingSet:
    """Return the training lists of collections. ``test`` is the collection left out."""
    reads_judgments = JUDGED in _families(config)
    if reads == "lists":
        lists = window_lists(
            collections, config.topics, reads_judgments, of_posts=options.idf is None
        )
        smallest = min(BATCHES)
        origin = (
            f"windows and batches of {smallest} posts and more of several first stages"
        )
    else:
        lists = fusion_lists(config, collections, reads_judgments)
        sources = UnionRetriever.of(collections[0], config).sources
        origin = f"the best {config.depth} of each of {', '.join(sources)}"
    names = [collection.name for collection in collections]
    return TrainingSet(names, test.name if test else None, origin, lists)


def _families(config: Any) -> list[str]:
    """Return the feature families of a configuration. Most networks have none."""
    families: str = getattr(config, "families", "")
    return families.split(",")


def _with_families(config: Any, families: Sequence[str]) -> Any:
    """Return the configuration with these feature families instead of its own."""
    return dataclasses.replace(config, families=",".join(families))


def _own_config(options: Options, own: Collection, config: Any) -> Any:
    """Return a configuration that reads a user's judgments and numbers.

    It reads no official runs. Families that were chosen by ``--set`` are kept.
    """
    if any(change.startswith("families=") for change in options.set):
        return config
    official = SIGNAL + OFFICIAL
    families = [name for name in _families(config) if not name.startswith(official)]
    if not options.forget_topics:
        families.append(JUDGED)
    families += [NUMBER + name for name in own.signals]
    return _with_families(config, families)


def _shipped_start(model: str, config: Any) -> Path | None:
    """Return the shipped checkpoint with the same features, or None if there is none.

    Features of judgments and numbers are ignored in the comparison, because shipped
    models have none.
    """
    families = [
        name
        for name in _families(config)
        if name != JUDGED and not name.startswith(NUMBER)
    ]
    shipped_config = _with_families(config, families)
    for folder in sorted((checkpoint.SHIPPED / model).glob("all*")):
        content = checkpoint.read_json(folder / "config.json")
        if type(config)(**content["config"]) == shipped_config:
            return folder
    return None


def _judged(
    options: Options, test: Collection | None, reads: Reads
) -> list[Collection]:
    """Return the judged collections to train on.

    If ``test`` is a microblog year, these are the other years. Otherwise they are all
    collections that are searched, and for models of lists also collections with given
    answers. Raises UsageError if there are none.
    """
    of_any_kind = test is None or not test.runs
    names = options.train_on or named.training_collections(
        options.test, options.data, of_any_kind
    )
    engine = engine_of(options)
    collections = []
    for name in names:
        collection = named.to_train_on(name, options.data)
        if collection.index or reads == "lists":
            collections.append(named.on_engine(collection, engine))
    if not collections:
        raise UsageError(
            "--test, --train-on: found no other collection to train on, expected one"
        )
    return collections


def _list_configuration(model: str, collections: Sequence[Collection]) -> str:
    """Return the name of the configuration for TREC Microblog or for other collections.

    If all collections have adapted word vectors, it is the adapted one.
    """
    names = registry.find(model).configurations
    default = "general"
    adapted = "adapted"
    is_microblog = all(collection.runs for collection in collections)
    if is_microblog and "microblog" in names:
        default = "microblog"
        adapted = "microblog_adapted"
    is_adapted = all(collection.adapted_space for collection in collections)
    return adapted if adapted in names and is_adapted else default


def _directory(options: Options, own: Collection | None, plan: Plan) -> Path:
    """Return the checkpoint folder to write."""
    if options.output:
        return options.output
    trained_on = "-".join(plan.data.trained_on)
    if own:
        name = own.key
    elif options.collection:
        name = trained_on
    elif options.train_on and not options.test:
        name = f"on-{trained_on}"
    else:
        name = plan.data.left_out or "all"
    if ADAPTED_FAMILY in _families(plan.config):
        name += ADAPTED_SUFFIX
    return models_directory() / "checkpoints" / options.model / name


def _files(
    source: str, own: Collection | None, plan: Plan, outcome: Outcome
) -> dict[str, bytes]:
    """Return name -> content of the files that are stored beside the model's own.

    These are the held-out scores, the tuning, and what the model knows of a user's
    collection. ``source`` is the model and the name of the checkpoint.
    """
    files: dict[str, bytes] = {}
    reads_lists = outcome.model.reads == "lists"
    if not reads_lists:  # In training lists, one topic has many forms
        lines = [f"{line}\n" for line in format_run(outcome.held_out_run, "held-out")]
        files[HELD_OUT_FILE] = gzip.compress("".join(lines).encode(), mtime=0)
    if own:
        files |= _own_files(own, plan, outcome)
    elif reads_lists:
        data = plan.data
        held_out = HeldOut(
            data.training.candidates.run,
            outcome.held_out_run,
            data.training.qrels,
            data.trained_on,
            source,
            data.candidates,
        )
        tuning = held_out.unmixed("AP", outcome.folds)
        # There are thousands of windows, which are too many to list.
        files[TUNING_FILE] = dataclasses.replace(tuning, topics=()).content()
    return files


def _own_files(own: Collection, plan: Plan, outcome: Outcome) -> dict[str, bytes]:
    """Return the tuning on a user's collection, and what the model reads of it.

    The result maps the name of each file to its content.
    """
    model = outcome.model
    files: dict[str, bytes] = {}
    frequencies = file_of(own)
    if frequencies and model.idf.source.startswith(OF_POSTS):
        files[FREQUENCIES] = frequencies.read_bytes()
    files[TUNING_FILE] = compare(own, plan.first_stage, outcome).content()
    if JUDGED in model.families:
        files[JUDGMENTS] = own.judged_posts.content()
    is_adapted = model.reads == "lists" and ADAPTED_FAMILY in model.families
    if is_adapted and own.adapted_file:
        files[ADAPTED_FILE] = own.adapted_file.read_bytes()
    return files


def _metrics(
    options: Options, own: Collection | None, plan: Plan, outcome: Outcome
) -> dict[str, Any]:
    """Return the content of ``metrics.json``."""
    data = plan.data
    figures = outcome.validation_map
    metrics: dict[str, Any] = {
        "model": options.model,
        "configuration": plan.configuration or "default",
        "changed_settings": _model_changes(options),
        "trained_on": list(data.trained_on),
    }
    if own and own.file:
        metrics["collection_file"] = str(own.file.resolve())
    started_from = None
    if plan.start:
        started_from = f"{plan.start.parent.name}/{plan.start.name}"
    metrics |= {
        "left_out": data.left_out,
        "topics": len(data.training.candidates.topics),
        "pairs": len(data.training.candidates),
        "candidates": data.candidates,
        "started_from": started_from,
        "folds": outcome.folds or None,
        "validation": {
            "AP": round(mean(figures.values()), 4),
            "by_fold": {name: round(value, 4) for name, value in figures.items()},
        },
    }
    return metrics | dict(outcome.record) | runtime.provenance()


def _print_figures(outcome: Outcome, data: TrainingSet) -> None:
    """Print the validation figures of a training."""
    for name, value in outcome.validation_map.items():
        topics = "the development part" if name == "development" else "held-out topics"
        print(f"{name}: AP {value:.4f} on {topics}")
    if outcome.model.reads == "lists":
        print(
            f"AP of folds is over the lists of the training, {data.candidates}, part "
            "of them in no order or without scores; it does not compare with that of a "
            "search"
        )
    epochs = outcome.record.get("epochs")
    if epochs:
        print(f"epochs: {epochs}")


def _settings(options: Options) -> Settings:
    """Return the settings of the training, changed by ``--set training.NAME``.

    Trees have no setting except the seed. Raises UsageError for a wrong change.
    """
    settings = Settings(epochs=0)
    if registry.is_network(options.model):
        settings = registry.find(options.model).settings_of(options.configuration)
    changes = []
    for change in options.set:
        if change.startswith(TRAINING):
            changes.append(change.removeprefix(TRAINING))
    _check_changes(options.model, changes, settings)
    try:
        seeded = dataclasses.replace(settings, seed=options.seed)
        changed: Settings = apply_changes(seeded, changes, prefix=TRAINING)
    except RerankerError as error:
        raise UsageError(str(error).splitlines()) from None
    if changes and not changed.epochs:
        raise UsageError("--set training.epochs: found 0, expected one epoch or more")
    return changed


def _check_changes(model: str, changes: Sequence[str], settings: Settings) -> None:
    """Raise UsageError for a change that cannot be made.

    The seed has a separate option, and models of trees have no training settings.
    """
    if any(change.startswith("seed=") for change in changes):
        raise UsageError("--set training.seed: found a seed, expected it by --seed")
    if changes and not settings.epochs:
        raise UsageError(
            f"--set {TRAINING}{changes[0]}: found for {model}, which is not trained "
            "step by step and has no use for it; change its own settings by --set "
            "NAME=VALUE"
        )


def _config(options: Options, configuration: str | None) -> Any:
    """Return the named configuration, changed by ``--set``.

    Raises UsageError if there is no configuration of this name, or for a wrong change.
    """
    configurations = registry.find(options.model).configurations
    name = configuration or next(iter(configurations))
    if name not in configurations:
        raise UsageError(
            f"--configuration: found {name!r}, expected one of "
            f"{', '.join(configurations)}"
        )
    return apply_changes(configurations[name], _model_changes(options))


def _model_changes(options: Options) -> list[str]:
    """Return the changes that concern the model's configuration, not its training."""
    return [change for change in options.set if not change.startswith(TRAINING)]
