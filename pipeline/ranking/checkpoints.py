"""The trained model of a search: its checkpoint.

Checkpoints trained here lie in ``checkpoints/<model>/<collection>`` below the folder of models
(``$TWEETRERANK_HOME``, or the user's folder of data), and are preferred to shipped ones. For their
λ see :mod:`tweetrerank.pipeline.ranking.interpolation`.
"""

import shlex
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from platformdirs import user_cache_path, user_data_path

from tweetrerank.indexes.data_error import DataError
from tweetrerank.pipeline.collections.collection import (
    OWN,
    Collection,
    home_directory,
    models_directory,
)
from tweetrerank.pipeline.collections.named import answers
from tweetrerank.pipeline.ranking.frequencies import named_frequencies
from tweetrerank.pipeline.ranking.interpolation import Tuning
from tweetrerank.pipeline.ranking.ranker import Ranker
from tweetrerank.pipeline.runtime import choose_device
from tweetrerank.pipeline.text import say
from tweetrerank.pipeline.usage_error import UsageError
from tweetrerank.rerankers import checkpoint as checkpoints
from tweetrerank.rerankers import registry
from tweetrerank.rerankers.pairs import PRIOR
from tweetrerank.rerankers.reranker import TUNING_FILE, Model
from tweetrerank.rerankers.reranker_error import RerankerError
from tweetrerank.rerankers.text.vocabulary import Idf

ADAPTED_SUFFIX = "-adapted"
"""At the end of the name of a checkpoint that reads word vectors adapted to the collection."""


def default_directory(
    model: str, collection: str, file: Path | None = None, is_adapted: bool = False
) -> Path:
    """The checkpoint that has not seen ``collection`` (its key), trained here or else shipped.

    For a judged microblog collection it was trained without that collection, for an
    answer-selection collection on its training part, for any other on all judged collections. Own
    collections have a ``file``. With adapted word vectors, models that read them are preferred.

    Raises DataError if there is none, RerankerError if it is damaged or of another collection, or
    lacks its word vectors.
    """
    own_training = collection in answers()
    # A model trained on posts alone does not fit questions and answers.
    endings = [ADAPTED_SUFFIX, ""] if is_adapted else [""]
    own = models_directory() / "checkpoints" / model
    for name in [collection] if own_training else [collection, "all"]:
        for root in (own, checkpoints.SHIPPED / model):
            for folder in (root / f"{name}{ending}" for ending in endings):
                if folder.is_dir() and not _must_skip(folder, collection):
                    return folder
        if (
            not is_adapted
            and (folder := own / f"{collection}{ADAPTED_SUFFIX}").is_dir()
        ):
            raise RerankerError(
                f"{folder}: found no word vectors adapted to {collection}, expected those that the "
                "model was trained with; run pipeline.adapt again, or remove the model"
            )
    words = f"{'--collection' if own_training else '--test'} {collection}"
    if collection.startswith(OWN):
        words = f"--collection {shlex.quote(str(file or 'FILE'))}"
    raise DataError(
        f"there is no {model} trained for {file or collection} here; train one with "
        f"`python -m pipeline.train {model} {words}` or name a --checkpoint"
    )


def directory_for(model: str, collection: Collection) -> Path:
    """:func:`default_directory` of a collection."""
    return default_directory(
        model, collection.key, collection.file, collection.adapted_file is not None
    )


def _must_skip(folder: Path, collection: str) -> bool:
    """Whether the model has seen this collection's judgments, or has no λ and gained nothing."""
    if not folder.is_relative_to(checkpoints.SHIPPED):
        checkpoints.checked(folder)
    metrics = checkpoints.read_json(folder / "metrics.json")
    name = folder.name.removesuffix(ADAPTED_SUFFIX)
    trained_on = metrics.get("trained_on", [])
    is_of_one = name != "all" or "collection_file" in metrics
    found = metrics.get("left_out") or (", ".join(trained_on) if is_of_one else name)
    if found != name:
        raise RerankerError(
            f"{folder}: found a model trained for {found}, expected one for {name}; put the right "
            "one there, or remove it and train again"
        )
    if not folder.name.startswith("all"):
        path = folder / TUNING_FILE
        tuning = Tuning.load(path) if path.exists() else None
        return tuning is not None and (tuning.weight, tuning.normalization) == (
            0,
            "none",
        )
    return collection in trained_on


def check_name(name: str) -> None:
    """Raise UsageError for an unknown model."""
    if name not in registry.names():
        raise UsageError(
            f"`reranker`: found {name!r}, expected one of {', '.join([*registry.names(), 'none'])}"
        )


def load_model(
    name: str,
    collection: Collection,
    checkpoint: Path | None = None,
    device: str = "auto",
    threads: int | None = None,
    idf: str | None = None,
    batch_size: int = 256,
) -> Model:
    """The trained model for a collection, of :func:`default_directory` without a ``checkpoint``.
    ``device`` and ``threads``: see :func:`tweetrerank.pipeline.runtime.choose_device`. ``idf``: ``wordfreq``,
    for the collection's language if it names one, ``posts`` for both that and the collection's
    posts, or a file; None is the one used in training.
    ``batch_size``: pairs in a forward pass."""
    check_name(name)
    device = choose_device(device, threads, registry.is_network(name))

    def frequencies(of_training: str) -> Idf:
        return checkpoints.idf_from(named_frequencies(idf or of_training, collection))

    directory = checkpoint or directory_for(name, collection)
    trained = checkpoints.load(
        directory, name, device, frequencies, batch_size=batch_size
    )
    source = Path(trained.metrics.get("collection_file", ""))
    is_other = (
        collection.file and source.is_file() and not source.samefile(collection.file)
    )
    # The file of values in memory is another one with every change of these.
    if is_other and not source.is_relative_to(
        (home_directory() / "collections").resolve()
    ):
        say(
            f"note: {directory} was trained on {source}, which has the name {collection.name}, "
            "too; give one of them another `name`"
        )
    return trained


def note_elsewhere(collection: Collection) -> None:
    """Say that a model of a collection lies in another folder, or under its file's old name."""
    roots = {user_data_path("tweetrerank"), user_cache_path("tweetrerank")} - {
        models_directory()
    }
    found = [
        path for root in roots for path in root.glob(f"checkpoints/*/{collection.key}")
    ]
    if found:
        say(
            f"note: {found[0]} was trained for {collection.name}, but models are read from "
            f"{models_directory()}; set TWEETRERANK_HOME, or move the folder there"
        )
    for path in sorted(models_directory().glob(f"checkpoints/*/{OWN}*/metrics.json")):
        with suppress(RerankerError):  # A damaged one of another collection
            source = Path(checkpoints.read_json(path).get("collection_file") or "/")
            beside = (
                collection.file and collection.file.resolve().parent == source.parent
            )
            if beside and not source.exists():
                name = path.parent.name.removesuffix(ADAPTED_SUFFIX)
                say(
                    f"note: {path.parent} was trained on {source}, which is not there any more; "
                    f'if it is {collection.file} now, name that "{name}" by the key `name`'
                )
                return


def warn_of_seen(ranker: Ranker) -> None:
    """Say, where figures are printed, how many judged topics the model was trained and tuned on."""
    collection, trained = ranker.collection, ranker.model
    # The training part of a collection with given candidates is apart from the part ranked here.
    if trained is None or collection is None or collection.given_candidates is not None:
        return
    if collection.name not in trained.metrics.get("trained_on", []):
        return
    judged = {topic.query_id for topic in collection.topics} & {
        *(collection.qrels or {})
    }
    seen, path = judged, trained.directory / TUNING_FILE
    if path.exists() and collection.name in (tuning := Tuning.load(path)).collections:
        seen = judged & {*tuning.topics}
    what = (
        f"{len(seen)} of the {len(judged)} judged topics of " if seen != judged else ""
    )
    if seen or not judged:
        say(
            f"warning: {trained.directory} was trained on {what}{collection.name}; its figures "
            "there mean nothing"
        )


def check_reads_given(checkpoint: Any) -> None:
    """Raise RerankerError for a model, here or elsewhere, that needs more than such candidates."""
    if not checkpoint.reads_given:
        signals = sorted(checkpoint.signals - {PRIOR})
        reads = (
            f"the scores of {', '.join(signals)}"
            if signals
            else "a whole list of candidates"
        )
        raise RerankerError(
            f"{checkpoint.directory}: found {checkpoint.name}, which reads {reads}; expected a "
            "model of given candidates, such as window or mp_hcnn"
        )


def best_trained(
    collection: str, fits: Callable[[str], bool]
) -> tuple[str, Tuning] | None:
    """Name and tuning of the model that is best on held-out topics of an own collection, by its
    key; None if no model that ``fits`` gained enough for searches to use it (λ = 0). Raises
    RerankerError if one is damaged."""
    root, tunings = models_directory() / "checkpoints", {}
    for name in registry.names():
        folders = [root / name / f"{collection}{end}" for end in (ADAPTED_SUFFIX, "")]
        folder = next((each for each in folders if each.is_dir()), None)
        if folder and fits(name):
            checkpoints.checked(folder)
            path = folder / TUNING_FILE
            if path.exists() and (tuning := Tuning.load(path)).weight > 0:
                tunings[name] = tuning
    # A λ tuned for another measure than AP comes after those tuned for AP.
    figures = {
        n: (of.measure.startswith("AP"), of.cross_validated)
        for n, of in tunings.items()
    }
    best = max(figures, key=lambda name: figures[name], default=None)
    return (best, tunings[best]) if best else None
