"""Find and load the checkpoint of a trained model for a collection.

Checkpoints trained here lie in ``checkpoints/<model>/<collection>`` below the folder of
models (``$TWEETRERANK_HOME``, or the user's data folder). They are preferred to shipped
ones. Their λ is handled by :mod:`tweetrerank.pipeline.ranking.interpolation`.
"""

import shlex
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from platformdirs import user_cache_path, user_data_path

from tweetrerank.indexes.data_error import DataError
from tweetrerank.pipeline.collections.collection import OWN, Collection
from tweetrerank.pipeline.collections.folders import home_directory, models_directory
from tweetrerank.pipeline.collections.named import answers
from tweetrerank.pipeline.ranking.frequencies import named_frequencies
from tweetrerank.pipeline.ranking.interpolation import Tuning
from tweetrerank.pipeline.ranking.ranker import Ranker
from tweetrerank.pipeline.runtime import choose_device
from tweetrerank.pipeline.text import say
from tweetrerank.pipeline.usage_error import UsageError
from tweetrerank.rerankers import checkpoint as checkpoints
from tweetrerank.rerankers import registry
from tweetrerank.rerankers.model import TUNING_FILE, Model
from tweetrerank.rerankers.pairs import PRIOR
from tweetrerank.rerankers.reranker_error import RerankerError
from tweetrerank.rerankers.text.vocabulary import Idf

ADAPTED_SUFFIX = "-adapted"
"""Ending of the name of a checkpoint that reads adapted word vectors."""


def default_directory(
    model: str, collection: str, file: Path | None = None, is_adapted: bool = False
) -> Path:
    """Return the folder of the checkpoint that has not seen a collection.

    A checkpoint trained here is preferred to a shipped one. For a judged microblog
    collection, the model was trained without this collection. For an answer-selection
    collection, it was trained on the training part. For any other collection, it was
    trained on all judged collections.

    Args:
        model: name of the model.
        collection: key of the collection.
        file: file of a user's collection.
        is_adapted: whether the collection has adapted word vectors. If it has, models
            that read them are preferred.

    Raises:
        DataError: there is no such checkpoint.
        RerankerError: the checkpoint is damaged, belongs to another collection, or
            lacks its word vectors.
    """
    # A model trained on posts alone does not suit questions and answers.
    is_answers = collection in answers()
    folder = _usable(model, collection, collection, is_adapted)
    if folder is None and not is_adapted:
        _check_not_adapted(model, collection)
    if folder is None and not is_answers:
        folder = _usable(model, "all", collection, is_adapted)
    if folder is not None:
        return folder
    option = "--collection" if is_answers else "--test"
    arguments = f"{option} {collection}"
    if collection.startswith(OWN):
        arguments = f"--collection {shlex.quote(str(file or 'FILE'))}"
    raise DataError(
        f"there is no {model} trained for {file or collection} here; train one with "
        f"`python -m pipeline.train {model} {arguments}` or name a --checkpoint"
    )


def directory_for(model: str, collection: Collection) -> Path:
    """Return the folder that :func:`default_directory` finds for a collection."""
    has_vectors = collection.adapted_file is not None
    return default_directory(model, collection.key, collection.file, has_vectors)


def _usable(model: str, name: str, collection: str, is_adapted: bool) -> Path | None:
    """Return the preferred checkpoint of this name that may rank the collection.

    Returns None if there is none.
    """
    endings = [ADAPTED_SUFFIX, ""] if is_adapted else [""]
    for root in (models_directory() / "checkpoints", checkpoints.SHIPPED):
        for ending in endings:
            folder = root / model / f"{name}{ending}"
            if folder.is_dir() and not _must_skip(folder, collection):
                return folder
    return None


def _check_not_adapted(model: str, collection: str) -> None:
    """Raise RerankerError if a model was trained here but lacks its word vectors."""
    root = models_directory() / "checkpoints" / model
    folder = root / f"{collection}{ADAPTED_SUFFIX}"
    if folder.is_dir():
        raise RerankerError(
            f"{folder}: found no word vectors adapted to {collection}, expected those "
            "that the model was trained with; run pipeline.adapt again, or remove the "
            "model"
        )


def _must_skip(folder: Path, collection: str) -> bool:
    """Return whether a checkpoint must not rank the collection.

    This is so if the model was trained on the collection's judgments, or if it gained
    nothing on the collection. The second reason counts only for models without λ.
    Raises RerankerError if the folder holds a model trained for another collection.
    """
    if not folder.is_relative_to(checkpoints.SHIPPED):
        checkpoints.checked(folder)
    metrics = checkpoints.read_json(folder / "metrics.json")
    name = folder.name.removesuffix(ADAPTED_SUFFIX)
    trained_on = metrics.get("trained_on", [])
    subject = name
    if name != "all" or "collection_file" in metrics:
        subject = ", ".join(trained_on)
    subject = metrics.get("left_out") or subject
    if subject != name:
        raise RerankerError(
            f"{folder}: found a model trained for {subject}, expected one for {name}; "
            "put the right one there, or remove it and train again"
        )
    if folder.name.startswith("all"):
        return collection in trained_on
    tuning = _tuning_in(folder)
    if tuning is None:
        return False
    return tuning.weight == 0 and tuning.normalization == "none"


def _tuning_in(folder: Path) -> Tuning | None:
    """Return the tuning in a checkpoint's folder, or None if there is none."""
    path = folder / TUNING_FILE
    return Tuning.load(path) if path.exists() else None


def check_name(name: str) -> None:
    """Raise UsageError if there is no model of this name."""
    if name not in registry.names():
        expected = ", ".join([*registry.names(), "none"])
        raise UsageError(f"`reranker`: found {name!r}, expected one of {expected}")


def load_model(
    name: str,
    collection: Collection,
    checkpoint: Path | None = None,
    device: str = "auto",
    threads: int | None = None,
    idf: str | None = None,
    batch_size: int = 256,
) -> Model:
    """Load a trained model to rank a collection.

    Args:
        name: name of the model.
        collection: the collection to rank.
        checkpoint: folder of the model. The default is :func:`default_directory`.
        device: see :func:`tweetrerank.pipeline.runtime.choose_device`.
        threads: number of threads; None uses all cores.
        idf: source of word frequencies. ``wordfreq`` takes them for the collection's
            language, and ``posts`` adds the counts of the collection's posts. It may
            also be a file. None takes the kind of source used in training.
        batch_size: number of pairs in one forward pass.

    Raises:
        UsageError: the name is unknown.
        DataError: there is no checkpoint for the collection.
        RerankerError: the checkpoint is damaged or belongs to another collection.
    """
    check_name(name)
    device = choose_device(device, threads, registry.is_network(name))

    def frequencies(training_source: str) -> Idf:
        source = named_frequencies(idf or training_source, collection)
        return checkpoints.idf_from(source)

    directory = checkpoint or directory_for(name, collection)
    model = checkpoints.load(
        directory, name, device, frequencies, batch_size=batch_size
    )
    _note_namesake(model, directory, collection)
    return model


def _note_namesake(model: Model, directory: Path, collection: Collection) -> None:
    """Print a note if the model was trained on another collection of the same name."""
    source = Path(model.metrics.get("collection_file", ""))
    if not collection.file or not source.is_file():
        return
    if source.samefile(collection.file):
        return
    # A collection in memory gets a new file whenever its values change.
    in_memory = (home_directory() / "collections").resolve()
    if not source.is_relative_to(in_memory):
        say(
            f"note: {directory} was trained on {source}, which has the name "
            f"{collection.name}, too; give one of them another `name`"
        )


def note_elsewhere(collection: Collection) -> None:
    """Print a note if the collection's models lie where they are not found.

    They may lie in another folder, or under the file name that the collection used to
    have.
    """
    roots = {user_data_path("tweetrerank"), user_cache_path("tweetrerank")}
    for root in roots - {models_directory()}:
        folder = next(root.glob(f"checkpoints/*/{collection.key}"), None)
        if folder:
            say(
                f"note: {folder} was trained for {collection.name}, but models are "
                f"read from {models_directory()}; set TWEETRERANK_HOME, or move the "
                "folder there"
            )
            break
    for path in sorted(models_directory().glob(f"checkpoints/*/{OWN}*/metrics.json")):
        source = _lost_source(path, collection)
        if source:
            name = path.parent.name.removesuffix(ADAPTED_SUFFIX)
            say(
                f"note: {path.parent} was trained on {source}, which is not there any "
                f'more; if it is {collection.file} now, name that "{name}" by the key '
                "`name`"
            )
            return


def _lost_source(metrics: Path, collection: Collection) -> Path | None:
    """Return the missing file of a model's collection, if it may have been renamed.

    It may have been renamed if it was in the same folder as this collection's file.
    Otherwise return None.
    """
    with suppress(RerankerError):  # Skip a damaged model of another collection
        content = checkpoints.read_json(metrics)
        source = Path(content.get("collection_file") or "/")
        file = collection.file
        if file and file.resolve().parent == source.parent and not source.exists():
            return source
    return None


def warn_of_seen(ranker: Ranker) -> None:
    """Print a warning if the model was trained on judged topics of the collection.

    The measures printed for these topics mean nothing.
    """
    collection = ranker.collection
    model = ranker.model
    if model is None or collection is None:
        return
    # With given candidates, the training part has other topics than the part ranked
    # here.
    if collection.given_candidates is not None:
        return
    if collection.name not in model.metrics.get("trained_on", []):
        return
    judged_topics = set(collection.qrels or {})
    judged_topics &= {topic.query_id for topic in collection.topics}
    seen = _seen_topics(model, collection, judged_topics)
    if judged_topics and not seen:
        return
    part = ""
    if seen != judged_topics:
        part = f"{len(seen)} of the {len(judged_topics)} judged topics of "
    say(
        f"warning: {model.directory} was trained on {part}{collection.name}; its "
        "figures there mean nothing"
    )


def _seen_topics(
    model: Model, collection: Collection, judged_topics: set[str]
) -> set[str]:
    """Return the judged topics that the model was trained on.

    They are listed in the model's tuning. Without such a list, all judged topics count
    as seen.
    """
    tuning = _tuning_in(model.directory)
    if tuning and collection.name in tuning.collections:
        return judged_topics & set(tuning.topics)
    return judged_topics


def check_reads_given(model: Model) -> None:
    """Raise RerankerError if a model needs more than candidates and their scores."""
    if not model.reads_given:
        signals = sorted(model.signals - {PRIOR})
        reads = "a whole list of candidates"
        if signals:
            reads = f"the scores of {', '.join(signals)}"
        raise RerankerError(
            f"{model.directory}: found {model.name}, which reads {reads}; expected a "
            "model of given candidates, such as window or mp_hcnn"
        )


def best_trained(
    collection: str, fits: Callable[[str], bool]
) -> tuple[str, Tuning] | None:
    """Return (name, tuning) of the model that is best on held-out topics.

    Args:
        collection: key of a user's collection.
        fits: returns whether the model of a given name may be chosen.

    Returns:
        None if no model fits, or if every fitting model gained too little to be used in
        searches (its λ is 0).

    Raises:
        RerankerError: a model is damaged.
    """
    tunings = {}
    for name in registry.names():
        folder = _trained_folder(name, collection)
        if folder is None or not fits(name):
            continue
        checkpoints.checked(folder)
        tuning = _tuning_in(folder)
        if tuning and tuning.weight > 0:
            tunings[name] = tuning
    if not tunings:
        return None

    def quality(name: str) -> tuple[bool, float]:
        # A λ tuned for another measure than AP ranks after those tuned for AP.
        tuning = tunings[name]
        return tuning.measure.startswith("AP"), tuning.cross_validated

    best = max(tunings, key=quality)
    return best, tunings[best]


def _trained_folder(model: str, collection: str) -> Path | None:
    """Return the folder of a model trained here, or None if there is none.

    A model that reads adapted word vectors is preferred.
    """
    root = models_directory() / "checkpoints" / model
    for ending in (ADAPTED_SUFFIX, ""):
        folder = root / f"{collection}{ending}"
        if folder.is_dir():
            return folder
    return None
