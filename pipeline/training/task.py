"""A training: from its options to a checkpoint folder, and what the model in it is worth."""

import dataclasses
import gzip
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tweetrerank.indexes.files import atomic_directory
from tweetrerank.pipeline import runtime
from tweetrerank.pipeline.collections import named
from tweetrerank.pipeline.collections.collection import (
    NO_FILE,
    Collection,
    default_vectors,
    is_own,
    models_directory,
)
from tweetrerank.pipeline.collections.trec import format_run
from tweetrerank.pipeline.command.options import apply_changes
from tweetrerank.pipeline.evaluation.measures import mean
from tweetrerank.pipeline.ranking.checkpoints import ADAPTED_SUFFIX
from tweetrerank.pipeline.ranking.frequencies import file_of, named_frequencies
from tweetrerank.pipeline.ranking.fusion_ranker import OFFICIAL, UnionRetriever
from tweetrerank.pipeline.ranking.ranking_options import engine_of
from tweetrerank.pipeline.text import did_you_mean, say
from tweetrerank.pipeline.training import training_set, trees
from tweetrerank.pipeline.training.cross_validation import (
    HELD_OUT_FILE,
    HeldOut,
    compare,
)
from tweetrerank.pipeline.training.fusion_lists import (
    BATCHES,
    fusion_lists,
    window_lists,
)
from tweetrerank.pipeline.training.training_options import TRAINING, Options
from tweetrerank.pipeline.training.training_set import Outcome, Plan, TrainingSet
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
from tweetrerank.rerankers.networks.training.settings import Settings
from tweetrerank.rerankers.pairs import NUMBER
from tweetrerank.rerankers.reranker import TUNING_FILE, Reads
from tweetrerank.rerankers.reranker_error import RerankerError
from tweetrerank.rerankers.trees.fusion import ADAPTED_FAMILY

_Parts = tuple[str | None, Any, TrainingSet, TrainingSet, Path | None]
"""The fields of a plan from its configuration on."""


def train(options: Options, own: Collection | None = None) -> Path:
    """Train a model, on the collection ``own`` if there is one; the folder of its checkpoint."""
    _check(options)
    if options.collection and is_own(options.collection):
        own = named.on_engine(
            named.find(options.collection, options.data), engine_of(options)
        )
    name, is_network = options.model, registry.is_network(options.model)
    reads: Reads = registry.reads(name) or "posts"
    settings = _settings(options)
    device = runtime.choose_device(options.device, options.threads, is_network)
    parts = (
        _of_posts(options, own) if reads == "posts" else _of_lists(options, own, reads)
    )
    folds = min(options.folds, len(own.training_topics)) if own else options.folds
    # An index of microblog years has the posts of pools alone, which are rich in topics' words.
    knows_posts = reads == "lists" and (own or parts[2].training.groups)
    source = options.idf or (OF_POSTS if knows_posts else GENERAL)
    idf = checkpoint.idf_from(named_frequencies(source, own))
    plan = Plan(name, settings, folds, idf, *parts)
    say(f"training {name} on {', '.join(plan.data.trained_on)}")
    if is_network:
        from tweetrerank.pipeline.training import networks  # PyTorch

        outcome = networks.train(plan, _vector_file(options), device)
    else:
        outcome = trees.train(plan)
    directory = _directory(options, own, plan)
    model = dataclasses.replace(
        outcome.model, metrics=_metrics(options, own, plan, outcome)
    )
    files = _files(f"{name}/{directory.name}", own, plan, outcome)
    with atomic_directory(directory) as new:
        checkpoint.save(new, model, files)
    _print_figures(outcome, plan.data, reads)
    print(f"wrote {directory}")
    return directory


def _check(options: Options) -> None:
    """Raise UsageError for an unknown model or options that exclude each other."""
    if options.model not in registry.names():
        raise UsageError(
            f"model: found {options.model!r}, expected one of {', '.join(registry.names())}"
            + did_you_mean(options.model, registry.names())
        )
    folder, given = default_vectors(options.data).parent, bool(options.collection)
    vectors = _vector_file(options)
    problems = {
        f"--vectors: there is no file {options.vectors}, neither here nor in {folder}": (
            vectors != NO_FILE and not vectors.is_file()
        ),
        "--development: found no --collection, whose development part it is": (
            options.development != "given" and not given
        ),
        "--test and --collection: found both, expected one of them": options.test
        and given,
        "--collection: found with --train-on or --prior-runs, which choose microblog collections "
        "and their runs; expected either": given
        and (options.train_on or options.prior_runs),
        "--idf posts: found without --collection, whose posts they are of; window needs no --idf": (
            options.idf == OF_POSTS and not given
        ),
        "--top: found without --prior-runs, of which it takes the best": (
            options.top and not options.prior_runs
        ),
    }
    if found := [problem for problem, is_true in problems.items() if is_true]:
        raise UsageError(found)


def _vector_file(options: Options) -> Path:
    """The file of ``--vectors``, in the data folder if it is not found elsewhere."""
    default, given = default_vectors(options.data), options.vectors
    if given is None:
        return default if default.is_file() else NO_FILE
    return given if given == NO_FILE or given.is_file() else default.parent / given


def _of_posts(options: Options, own: Collection | None) -> _Parts:
    """A training on official or given candidates, or on an own collection's first stage."""
    config = _config(options, options.configuration)
    if own:
        data = training_set.own_training_set(own)
        if registry.is_network(options.model):
            data = dataclasses.replace(data, texts=[post.text for post in own.posts()])
    elif options.collection:
        collection = named.find_answers(options.collection, options.data)
        data = training_set.answer_training_set(
            collection, draws=options.development == "drawn"
        )
    else:
        runs = options.train_on, options.prior_runs, options.top
        data = training_set.microblog_training_set(options.test, options.data, *runs)
    return options.configuration, config, data, data, None


def _of_lists(options: Options, own: Collection | None, reads: Reads) -> _Parts:
    """A training on several searches or on windows; an own collection's extends shipped trees."""
    if options.collection and not own:
        raise UsageError(
            f"--collection: {options.model} ranks what searches find; name the collection to "
            "leave out by --test, or the file of an own one"
        )
    _config(options, options.configuration)  # Mistakes in settings come before data.
    test = named.find(options.test, options.data) if options.test else None
    collections = [own] if own else _judged(options, test, reads)
    configuration = options.configuration or _list_configuration(
        options.model, collections
    )
    config = _config(options, configuration)
    if own and not any(change.startswith("families=") for change in options.set):
        added = [JUDGED] * (not options.forget_topics) + [
            NUMBER + name for name in own.signals
        ]
        config = _with_families(
            config, lambda n: not n.startswith(f"signal:{OFFICIAL}"), added
        )
    first_stage = training_set.own_training_set(own) if own else None
    judged = JUDGED in config.families.split(",")
    if reads == "lists":
        lists = window_lists(
            collections, config.topics, judged, of_posts=options.idf is None
        )
        origin = f"windows and batches of {min(BATCHES)} posts and more of several first stages"
    else:
        lists = fusion_lists(config, collections, judged)
        sources = UnionRetriever.of(collections[0], config).sources
        origin = f"the best {config.depth} of each of {', '.join(sources)}"
    names, left_out = [each.name for each in collections], test.name if test else None
    data = TrainingSet(names, left_out, origin, lists)
    compared = first_stage if first_stage and reads == "searches" else data
    start = _shipped_start(options.model, config) if own else None
    return configuration, config, data, compared, start


def _shipped_start(model: str, config: Any) -> Path | None:
    """The shipped checkpoint with the same features but for those of judgments and numbers."""
    wanted = _with_families(config, lambda n: n != JUDGED and not n.startswith(NUMBER))
    for folder in sorted((checkpoint.SHIPPED / model).glob("all*")):
        if (
            type(config)(**checkpoint.read_json(folder / "config.json")["config"])
            == wanted
        ):
            return folder
    return None


def _with_families(
    config: Any, kept: Callable[[str], bool], added: Sequence[str] = ()
) -> Any:
    """A configuration with those of its families of features that are ``kept``, and others."""
    families = [*filter(kept, config.families.split(",")), *added]
    return dataclasses.replace(config, families=",".join(families))


def _judged(
    options: Options, test: Collection | None, reads: Reads
) -> list[Collection]:
    """Microblog years for a microblog year, else all collections with judgments that are searched;
    for a model of lists those with given answers, too."""
    of_any_kind = test is None or not test.runs
    names = options.train_on or named.training_collections(
        options.test, options.data, of_any_kind
    )
    collections, engine = (
        [named.to_train_on(n, options.data) for n in names],
        engine_of(options),
    )
    usable = [each for each in collections if each.index or reads == "lists"]
    found = [named.on_engine(each, engine) for each in usable]
    if not found:
        raise UsageError(
            "--test, --train-on: found no other collection to train on, expected one"
        )
    return found


def _list_configuration(model: str, collections: Sequence[Collection]) -> str:
    """The configuration for TREC Microblog or others; adapted if all have adapted word vectors."""
    known = registry.find(model).configurations
    is_microblog = "microblog" in known and all(
        collection.runs for collection in collections
    )
    name, adapted = (
        ("microblog", "microblog_adapted") if is_microblog else ("general", "adapted")
    )
    is_adapted = adapted in known and all(
        collection.adapted_space for collection in collections
    )
    return adapted if is_adapted else name


def _directory(options: Options, own: Collection | None, plan: Plan) -> Path:
    """The checkpoint folder to write."""
    trained_on, name = "-".join(plan.data.trained_on), plan.data.left_out or "all"
    if own or options.collection:
        name = own.key if own else trained_on
    elif options.train_on and not options.test:
        name = f"on-{trained_on}"
    families = getattr(plan.config, "families", "").split(",")
    name += ADAPTED_SUFFIX * (ADAPTED_FAMILY in families)
    return options.output or models_directory() / "checkpoints" / options.model / name


def _files(
    source: str, own: Collection | None, plan: Plan, outcome: Outcome
) -> dict[str, bytes]:
    """Held-out scores, figures, and what the model reads of an own collection; name -> content."""
    model, files, data = outcome.model, dict[str, bytes](), plan.data
    if model.reads != "lists":  # A topic has many lists.
        lines = "".join(
            f"{line}\n" for line in format_run(outcome.held_out_run, "held-out")
        )
        files[HELD_OUT_FILE] = gzip.compress(lines.encode(), mtime=0)
    if own:
        if (path := file_of(own)) and model.idf.source.startswith(OF_POSTS):
            files[FREQUENCIES] = path.read_bytes()
        files[TUNING_FILE] = compare(own, plan.first_stage, outcome).content()
        if JUDGED in model.families:
            files[JUDGMENTS] = own.judged_posts.content()
        is_adapted = model.reads == "lists" and ADAPTED_FAMILY in model.families
        if is_adapted and (path := own.adapted_file):
            files[ADAPTED_FILE] = path.read_bytes()
    elif model.reads == "lists":
        runs = data.training.candidates.run, outcome.held_out_run, data.training.qrels
        known = HeldOut(*runs, data.trained_on, source, data.candidates)
        tuning = known.unmixed("AP", outcome.folds)
        # There are thousands of windows.
        files[TUNING_FILE] = dataclasses.replace(tuning, topics=()).content()
    return files


def _metrics(
    options: Options, own: Collection | None, plan: Plan, outcome: Outcome
) -> dict[str, Any]:
    """The content of ``metrics.json``."""
    data, start, of_fold = plan.data, plan.start, outcome.validation_map
    file = own.file.resolve() if own and own.file else None
    return {
        "model": options.model,
        "configuration": plan.configuration or "default",
        "changed_settings": _model_changes(options),
        "trained_on": list(data.trained_on),
        **({"collection_file": str(file)} if file else {}),
        "left_out": data.left_out,
        "topics": len(data.training.candidates.topics),
        "pairs": len(data.training.candidates),
        "candidates": data.candidates,
        "started_from": start and f"{start.parent.name}/{start.name}",
        "folds": outcome.folds or None,
        "validation": {
            "AP": round(mean(of_fold.values()), 4),
            "by_fold": {name: round(value, 4) for name, value in of_fold.items()},
        },
        **outcome.record,
        **runtime.provenance(),
    }


def _print_figures(outcome: Outcome, data: TrainingSet, reads: Reads) -> None:
    for name, value in outcome.validation_map.items():
        topics = "the development part" if name == "development" else "held-out topics"
        print(f"{name}: AP {value:.4f} on {topics}")
    if reads == "lists":
        print(
            f"AP of folds is over the lists of the training, {data.candidates}, part of them in no "
            "order or without scores; it does not compare with that of a search"
        )
    if epochs := outcome.record.get("epochs"):
        print(f"epochs: {epochs}")


def _settings(options: Options) -> Settings:
    """The settings of the training with the changes of ``--set training.NAME``; none of trees."""
    model, is_network = registry.find(options.model), registry.is_network(options.model)
    settings = (
        model.settings_of(options.configuration) if is_network else Settings(epochs=0)
    )
    changes = [c.removeprefix(TRAINING) for c in options.set if c.startswith(TRAINING)]
    if any(change.startswith("seed=") for change in changes):
        raise UsageError("--set training.seed: found a seed, expected it by --seed")
    if changes and not settings.epochs:
        raise UsageError(
            f"--set {TRAINING}{changes[0]}: found for {options.model}, which is not trained step "
            "by step and has no use for it; change its own settings by --set NAME=VALUE"
        )
    try:
        seeded = dataclasses.replace(settings, seed=options.seed)
        changed: Settings = apply_changes(seeded, changes, prefix=TRAINING)
    except RerankerError as error:
        raise UsageError(str(error).splitlines()) from None
    if changes and not changed.epochs:
        raise UsageError("--set training.epochs: found 0, expected one epoch or more")
    return changed


def _config(options: Options, configuration: str | None) -> Any:
    """The named configuration with the changes of ``--set``."""
    known = registry.find(options.model).configurations
    name = configuration or next(iter(known))
    if name not in known:
        raise UsageError(
            f"--configuration: found {name!r}, expected one of {', '.join(known)}"
        )
    return apply_changes(known[name], _model_changes(options))


def _model_changes(options: Options) -> list[str]:
    """Changes of the model's configuration."""
    return [change for change in options.set if not change.startswith(TRAINING)]
