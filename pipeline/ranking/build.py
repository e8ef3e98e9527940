"""The one function that makes a ranker of a collection, of names, and of checkpoints."""

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from tweetrerank.indexes.data_error import DataError
from tweetrerank.indexes.methods import METHODS
from tweetrerank.pipeline import defaults
from tweetrerank.pipeline.collections.collection import Collection
from tweetrerank.pipeline.collections.named import open_collection
from tweetrerank.pipeline.evaluation.measures import heading
from tweetrerank.pipeline.ranking.checkpoints import (
    best_trained,
    check_name,
    directory_for,
    load_model,
    note_elsewhere,
)
from tweetrerank.pipeline.ranking.frequencies import named_frequencies
from tweetrerank.pipeline.ranking.fusion_ranker import Fusion, UnionRetriever
from tweetrerank.pipeline.ranking.interpolation import tuning_files, tuning_of
from tweetrerank.pipeline.ranking.ranker import Ranker
from tweetrerank.pipeline.ranking.retrievers import (
    IndexRetriever,
    Retriever,
    retriever_for,
)
from tweetrerank.pipeline.text import say
from tweetrerank.pipeline.usage_error import UsageError
from tweetrerank.rerankers import checkpoint as checkpoints
from tweetrerank.rerankers import registry
from tweetrerank.rerankers.reranker import Mixed, Model
from tweetrerank.rerankers.reranker_error import RerankerError
from tweetrerank.rerankers.text.vocabulary import Idf


def ranker(
    collection: str | Path | Collection,
    reranker: str = defaults.AUTO,
    first_stage: str | None = None,
    weight: float | None = None,
    *,
    candidates: str | None = None,
    parameters: Mapping[str, Any] | Sequence[str] = (),
    checkpoint: Path | str | None = None,
    default_weight: float | None = None,
    skip_unknown: bool = False,
    data: Path | str | None = None,
    **loading: Any,
) -> Ranker:
    """The ranker of a collection; without further arguments the best there is.

    Args:
        collection: name (``mb2012``), file (``my-posts.toml``), or an opened collection.
        reranker: name of a model, ``none`` for the first stage alone, or ``auto``: what was trained
            on the collection and is best on held-out topics, else the shipped fusion.
        first_stage: method of search, ``ql``, ``bm25``, ``rm3`` or ``axiom``.
        weight: λ, the new score's share; None is the checkpoint's tuned one.
        candidates: a TREC run to rerank, or the name of an official one, in place of a search.
        parameters: changes to the first stage's parameters, such as ``{"mu": 50}``.
        checkpoint: folder of a trained model; None is the one that has not seen the topics.
        default_weight: λ without a ``weight``, in place of the tuned one; a fusion has none.
        skip_unknown: leave out posts of ``candidates`` that the collection lacks.
        loading: see :func:`tweetrerank.pipeline.ranking.checkpoints.load_model`.

    Raises:
        UsageError: the arguments contradict one another.
        DataError: a file or a checkpoint is missing or damaged.
    """
    if isinstance(collection, str | Path):
        collection = open_collection(str(collection), data=Path(data) if data else None)
    if not isinstance(collection, Collection):
        raise UsageError(
            f"`collection`: found {collection!r}, expected its name, file or object"
        )
    if weight is not None and not (
        isinstance(weight, int | float) and 0 <= weight <= 1
    ):
        raise UsageError(f"`weight`: found {weight!r}, expected a number from 0 to 1")
    folder = Path(checkpoint) if checkpoint else None
    if isinstance(parameters, Mapping):
        parameters = [f"{name}={value}" for name, value in parameters.items()]
    chosen = {
        "first_stage": first_stage,
        "parameters": parameters,
        "weight": weight is not None,
    }
    given = [name for name, value in chosen.items() if value]
    if reranker == defaults.AUTO:
        has_weight = weight is not None or default_weight is not None
        is_mixed = bool(given or candidates or has_weight)
        reranker = defaults.DEFAULT_RERANKER
        reranker = (
            reranker if folder else default_reranker(collection, is_mixed, has_weight)
        )
    if registry.reads(reranker) == "searches":
        if given:
            problem = f"{reranker} takes the rankers of its training; leave it out"
            raise UsageError([f"`{argument}`: {problem}" for argument in given])
        if collection.answers is not None:
            raise UsageError(
                f"`reranker`: found {reranker}, but {collection.name} is not searched, its "
                "candidates are given; use another model"
            )
        model = load_model(reranker, collection, folder, **loading)
        union, known = UnionRetriever.of(collection, model.config), list[Retriever]()
        if candidates:
            known = [retriever_for(collection, candidates, skip_unknown=skip_unknown)]
        return Fusion(union, model, collection, *known)
    if reranker != defaults.NONE:
        check_name(reranker)  # Before files are looked for
    retriever = retriever_for(
        collection, candidates, first_stage, parameters, skip_unknown
    )
    if reranker == defaults.NONE:
        return Ranker(retriever, None, collection)
    model = load_model(reranker, collection, folder, **loading)
    if weight is not None:
        model = Mixed.of(model, weight)
    elif default_weight is not None:
        model = model.mixed(default_weight, "given")
    else:
        model = tuned(model, collection, has_scores=bool(candidates))
    return Ranker(retriever, model, collection)


def default_reranker(
    collection: Collection, is_mixed: bool = False, has_weight: bool = False
) -> str:
    """The model of ``auto``; a mixed one reranks one first stage, and a fusion has no λ."""

    def fits(name: str) -> bool:
        excluded = ["searches"] * is_mixed + ["lists"] * has_weight
        return registry.reads(name) not in excluded

    if collection.file and (best := best_trained(collection.key, fits)):
        name, tuning = best
        say(
            f"{name}, trained on {collection.title}: {heading(tuning.measure)} "
            f"{tuning.cross_validated:.4f} on held-out topics, {tuning.curve[0.0]:.4f} without it"
        )
        return name
    if collection.file:
        note_elsewhere(collection)
    # Without feedback, which no engine offers, window is better on average, and takes one search;
    # TREC Microblog's official runs have feedback.
    has_feedback = bool(collection.runs) or {*METHODS} <= {*collection.methods}
    fusions = [defaults.DEFAULT_FUSION] if collection.methods and has_feedback else []
    for name in (*fusions, defaults.DEFAULT_WINDOW):
        if fits(name) and _is_trained(name, collection):
            return name
    return defaults.DEFAULT_RERANKER


def _is_trained(model: str, collection: Collection) -> bool:
    """Whether there is a checkpoint of a model for the collection."""
    with suppress(DataError):
        return directory_for(model, collection).is_dir()
    return False


def neural_mixture(fusion: Ranker, **loading: Any) -> Ranker | None:
    """MP-HCNN and query likelihood for the collection of a fusion; None without it or PyTorch."""
    collection, name = fusion.collection, defaults.DEFAULT_RERANKER
    if not isinstance(fusion, Fusion) or fusion.first_stage or collection is None:
        return None
    if defaults.DEFAULT_METHOD not in collection.methods or not _is_trained(
        name, collection
    ):
        return None
    if find_spec("torch") is None:
        remedy = "pip install 'tweetrerank[neural]'"
        say(f"found no PyTorch: the stages of {name} are left out; {remedy}")
        return None
    model = tuned(load_model(name, collection, **loading), collection)
    method = METHODS[defaults.DEFAULT_METHOD]()
    retriever = IndexRetriever(fusion.retriever.index, method, collection.skips_own_id)
    return Ranker(retriever, model, collection)


def tuned(model: Model, collection: Collection, has_scores: bool = False) -> Model:
    """A model with the λ tuned for its checkpoint; ``has_scores``: given candidates have some."""
    is_given = collection.given_candidates is not None
    # There is no official run of a training part to tune it on.
    advice = (
        "choose one by --lambda"
        if is_given
        else "run `tweetrerank tune` for this checkpoint"
    )
    return mixed(model, has_scores or not is_given, key=collection.key, advice=advice)


def mixed(
    model: Model,
    has_scores: bool,
    weight: float | None = None,
    key: str = "",
    advice: str = "choose one by --lambda",
) -> Model:
    """A model with its λ: the given ``weight``, or the one that was tuned with the checkpoint; 1
    without scores of a first stage. A model that reads these itself has none but a given one.
    ``key`` is that of the collection, ``advice`` what to do where none was tuned."""
    if not has_scores:
        return Mixed.of(
            model, 1.0, "nothing to mix: the candidates are given without scores"
        )
    if weight is not None:
        return Mixed.of(model, weight)
    if found := tuning_of(model.directory, key):
        return model.mixed(found.weight, found.origin)
    return model.mixed(defaults.UNTUNED_WEIGHT, f"not tuned: {advice}")


class Source(NamedTuple):
    """A checkpoint folder, and what takes the place of its word vectors and frequencies: vectors
    adapted to a collection, and the source of its frequencies."""

    folder: Path
    adapted: Path | None = None
    idf: str = ""

    def load(
        self, device: str = "cpu", name: str | None = None, batch_size: int = 256
    ) -> Model:
        """The model, as by :func:`tweetrerank.rerankers.checkpoint.load`."""

        def frequencies(of_training: str) -> Idf:
            return checkpoints.idf_from(self.idf or of_training)

        return checkpoints.load(
            self.folder, name, device, frequencies, self.adapted, batch_size
        )

    @property
    def frequencies(self) -> Path | None:
        """The file of a collection's word frequencies."""
        _, _, path = self.idf.partition(":")[2].partition(":")
        return Path(path) if path else None

    @property
    def version(self) -> str:
        """Hash of all that the scores depend on; RerankerError if a file cannot be read."""
        version, tuned = (
            checkpoints.version_of(self.folder),
            tuning_files(self.folder)[:-1],
        )
        known = [path for path in (self.adapted, self.frequencies) if path]
        for path in [*known, *(path for path in tuned if path.exists())]:
            try:
                content = path.read_bytes()
            except OSError as error:
                raise RerankerError(
                    f"{path}: cannot be read: {error.strerror}"
                ) from None
            version = hashlib.sha256(version.encode() + content).hexdigest()
        return version


def best_source(collection: Collection) -> Source:
    """The best model of given candidates for a collection, with what is known of its words."""
    folder = directory_for(default_reranker(collection, is_mixed=True), collection)
    idf = named_frequencies(checkpoints.frequencies_of(folder), collection)
    return Source(folder, collection.adapted_file, idf)
