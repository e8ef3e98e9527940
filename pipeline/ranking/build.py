"""Build a ranker from a collection, names and a checkpoint.

The module also selects the model that a service loads (:func:`best_source`).
"""

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from tweetrerank.indexes.data_error import DataError
from tweetrerank.indexes.methods import METHODS
from tweetrerank.pipeline.collections.collection import Collection
from tweetrerank.pipeline.collections.named import open_collection
from tweetrerank.pipeline.defaults import (
    AUTO,
    DEFAULT_FUSION,
    DEFAULT_METHOD,
    DEFAULT_RERANKER,
    DEFAULT_WINDOW,
    NONE,
    UNTUNED_WEIGHT,
)
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
from tweetrerank.pipeline.ranking.retrievers import IndexRetriever, retriever_for
from tweetrerank.pipeline.text import say
from tweetrerank.pipeline.usage_error import UsageError
from tweetrerank.rerankers import checkpoint as checkpoints
from tweetrerank.rerankers import registry
from tweetrerank.rerankers.mixed import Mixed, with_weight
from tweetrerank.rerankers.model import Model
from tweetrerank.rerankers.reranker_error import RerankerError
from tweetrerank.rerankers.text.vocabulary import Idf


def ranker(
    collection: str | Path | Collection,
    reranker: str = AUTO,
    first_stage: str | None = None,
    weight: float | None = None,
    *,
    candidates: str | None = None,
    parameters: Mapping[str, object] | Sequence[str] = (),
    checkpoint: Path | str | None = None,
    data: Path | str | None = None,
    device: str = "auto",
    threads: int | None = None,
    idf: str | None = None,
    batch_size: int = 256,
) -> Ranker:
    """Build a ranker for a collection.

    By default it is the best ranker that is available for the collection.

    Args:
        collection: a name (``mb2012``), a file (``my-posts.toml``), or an opened
            collection.
        reranker: name of a model, ``none`` for the first stage alone, or ``auto``. With
            ``auto``, the ranker takes the model trained on the collection that is best
            on held-out topics, or else a shipped model.
        first_stage: search method: ``ql``, ``bm25``, ``rm3`` or ``axiom``.
        weight: λ, the share of the model's score in the mixture with the first stage.
            None takes the λ tuned for the checkpoint.
        candidates: a TREC run to rerank in place of a search: a file, or the name of
            one of the collection's official runs.
        parameters: changes to the first stage's parameters, such as ``{"mu": 50}``.
        checkpoint: folder of a trained model. None takes the checkpoint that was not
            trained on the collection's topics.
        data: folder that holds the named collections; None takes ``$TWEETRERANK_DATA``.
        device: where a network runs: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
        threads: number of threads; None uses all cores.
        idf: source of word frequencies, see
            :func:`tweetrerank.pipeline.ranking.checkpoints.load_model`.
        batch_size: number of pairs in one forward pass of a network.

    Raises:
        UsageError: the arguments contradict one another.
        DataError: a file or an index is missing or damaged.
        RerankerError: a checkpoint is damaged.
    """
    if isinstance(collection, str | Path):
        collection = open_collection(str(collection), data=Path(data) if data else None)
    if not isinstance(collection, Collection):
        raise UsageError(
            f"`collection`: found {collection!r}, expected its name, file or object"
        )
    if weight is not None:
        _check_weight(weight)
    if isinstance(parameters, Mapping):
        parameters = [f"{name}={value}" for name, value in parameters.items()]
    specification = RankerSpecification(
        collection,
        reranker,
        first_stage=first_stage,
        weight=weight,
        candidates=candidates,
        parameters=parameters,
        checkpoint=Path(checkpoint) if checkpoint else None,
        device=device,
        threads=threads,
        idf=idf,
        batch_size=batch_size,
    )
    return specification.build()


def _check_weight(weight: object) -> None:
    """Raise UsageError if λ is not a number from 0 to 1."""
    if not isinstance(weight, int | float) or not 0 <= weight <= 1:
        raise UsageError(f"`weight`: found {weight!r}, expected a number from 0 to 1")


@dataclass(frozen=True)
class RankerSpecification:
    """The checked arguments of :func:`ranker`, and some that only commands have."""

    collection: Collection
    reranker: str = AUTO
    first_stage: str | None = None
    weight: float | None = None
    default_weight: float | None = None
    """λ to use if there is no ``weight``. It replaces the tuned λ. Fusions ignore
    it."""
    candidates: str | None = None
    skip_unknown: bool = False
    """Whether to leave out posts of ``candidates`` that the collection lacks."""
    parameters: Sequence[str] = ()  # ``NAME=VALUE``
    checkpoint: Path | None = None
    device: str = "auto"
    threads: int | None = None
    idf: str | None = None
    batch_size: int = 256

    def build(self) -> Ranker:
        """Open the index or the run, load the model, and combine them.

        Raises the same errors as :func:`ranker`.
        """
        name = self._model_name()
        if registry.reads(name) == "searches":
            return self._fusion(name)
        if name != NONE:
            check_name(name)  # The name is checked before any file is looked for
        retriever = retriever_for(
            self.collection,
            self.candidates,
            self.first_stage,
            self.parameters,
            self.skip_unknown,
        )
        model = None if name == NONE else self._weighted(self._load(name))
        return Ranker(retriever, model, self.collection)

    def _model_name(self) -> str:
        """Return the name of the model.

        For ``auto``, the choice depends on the other arguments.
        """
        if self.reranker != AUTO:
            return self.reranker
        if self.checkpoint:
            return DEFAULT_RERANKER
        has_weight = self.weight is not None or self.default_weight is not None
        is_mixed = has_weight or bool(self.candidates or self._mixture_arguments())
        return default_reranker(self.collection, is_mixed, has_weight)

    def _mixture_arguments(self) -> list[str]:
        """Return the names of the given arguments that concern one first stage or λ.

        A fusion accepts none of them.
        """
        names = []
        if self.first_stage:
            names.append("first_stage")
        if self.parameters:
            names.append("parameters")
        if self.weight is not None:
            names.append("weight")
        return names

    def _fusion(self, name: str) -> Fusion:
        """Return a fusion that finds its own candidates or ranks the given ones.

        Raises UsageError for arguments that a fusion cannot use, and for a collection
        that has given candidates and is not searched.
        """
        problem = f"{name} takes the rankers of its training; leave it out"
        problems = [
            f"`{argument}`: {problem}" for argument in self._mixture_arguments()
        ]
        if problems:
            raise UsageError(problems)
        if self.collection.answers is not None:
            raise UsageError(
                f"`reranker`: found {name}, but {self.collection.name} is not "
                "searched, its candidates are given; use another model"
            )
        model = self._load(name)
        union = UnionRetriever.of(self.collection, model.config)
        first_stage = None
        if self.candidates:
            first_stage = retriever_for(
                self.collection, self.candidates, skip_unknown=self.skip_unknown
            )
        return Fusion(union, model, self.collection, first_stage)

    def _load(self, name: str) -> Model:
        """Load the model of this name for the collection."""
        return load_model(
            name,
            self.collection,
            self.checkpoint,
            self.device,
            self.threads,
            self.idf,
            self.batch_size,
        )

    def _weighted(self, model: Model) -> Model:
        """Return the model mixed with the first stage by its λ."""
        if self.weight is not None:
            return Mixed.of(model, self.weight)
        if self.default_weight is not None:
            return with_weight(model, self.default_weight, "given")
        return tuned(model, self.collection, has_scores=bool(self.candidates))


def default_reranker(
    collection: Collection, is_mixed: bool = False, has_weight: bool = False
) -> str:
    """Return the name of the model that ``auto`` stands for.

    Args:
        collection: the collection to rank.
        is_mixed: whether a single first stage is reranked. This excludes fusions.
        has_weight: whether there is a λ. This excludes models that read whole lists.
    """

    def fits(name: str) -> bool:
        reads = registry.reads(name)
        is_excluded = (is_mixed and reads == "searches") or (
            has_weight and reads == "lists"
        )
        return not is_excluded

    if collection.file:
        best = best_trained(collection.key, fits)
        if best:
            name, tuning = best
            say(
                f"{name}, trained on {collection.title}: {heading(tuning.measure)} "
                f"{tuning.cross_validated:.4f} on held-out topics, "
                f"{tuning.curve[0.0]:.4f} without it"
            )
            return name
        note_elsewhere(collection)
    defaults = [DEFAULT_WINDOW]
    if _has_feedback(collection):
        defaults.insert(0, DEFAULT_FUSION)
    for name in defaults:
        if fits(name) and _is_trained(name, collection):
            return name
    return DEFAULT_RERANKER


def _has_feedback(collection: Collection) -> bool:
    """Return whether the searches of a collection include pseudo-relevance feedback.

    In a collection without feedback, such as one in a search engine, the window model
    is better on average than a fusion and takes only one search. The official runs of
    TREC Microblog include feedback.
    """
    if not collection.methods:
        return False
    return bool(collection.runs) or set(METHODS) <= set(collection.methods)


def _is_trained(model: str, collection: Collection) -> bool:
    """Return whether a model has a checkpoint for the collection."""
    with suppress(DataError):
        return directory_for(model, collection).is_dir()
    return False


def neural_mixture(
    fusion: Ranker,
    device: str = "auto",
    threads: int | None = None,
    idf: str | None = None,
    batch_size: int = 256,
) -> Ranker | None:
    """Return MP-HCNN mixed with query likelihood, for the collection of a fusion.

    Returns None if the collection cannot be searched by query likelihood, if there is
    no such model, or if PyTorch is missing. The other arguments are those of
    :func:`ranker`.
    """
    if not isinstance(fusion, Fusion) or fusion.first_stage:
        return None
    collection = fusion.collection
    name = DEFAULT_RERANKER
    if collection is None or DEFAULT_METHOD not in collection.methods:
        return None
    if not _is_trained(name, collection):
        return None
    if find_spec("torch") is None:
        say(
            f"found no PyTorch: the stages of {name} are left out; "
            "pip install 'tweetrerank[neural]'"
        )
        return None
    model = load_model(name, collection, None, device, threads, idf, batch_size)
    method = METHODS[DEFAULT_METHOD]()
    retriever = IndexRetriever(fusion.retriever.index, method, collection.skips_own_id)
    return Ranker(retriever, tuned(model, collection), collection)


def tuned(model: Model, collection: Collection, has_scores: bool = False) -> Model:
    """Return a model mixed by the λ that was tuned for its checkpoint.

    ``has_scores`` says whether candidates that do not come from a search have scores.
    """
    is_searched = collection.given_candidates is None
    advice = "run `tweetrerank tune` for this checkpoint"
    if not is_searched:
        # The training part of such a collection has no official run to tune λ on.
        advice = "choose one by --lambda"
    return mixed(model, has_scores or is_searched, key=collection.key, advice=advice)


def mixed(
    model: Model,
    has_scores: bool,
    weight: float | None = None,
    key: str = "",
    advice: str = "choose one by --lambda",
) -> Model:
    """Return a model mixed with the first stage by its λ.

    Args:
        model: the model, as loaded. A model that reads first-stage scores itself gets a
            λ only if ``weight`` is given.
        has_scores: whether the first stage has scores. If it has none, λ is 1.
        weight: λ. None takes the λ tuned for the checkpoint.
        key: key of the collection.
        advice: remedy to report if no λ was tuned. The model then gets a default λ.
    """
    if not has_scores:
        reason = "nothing to mix: the candidates are given without scores"
        return Mixed.of(model, 1.0, reason)
    if weight is not None:
        return Mixed.of(model, weight)
    tuning = tuning_of(model.directory, key)
    if tuning:
        return with_weight(model, tuning.weight, tuning.origin)
    return with_weight(model, UNTUNED_WEIGHT, f"not tuned: {advice}")


class Source(NamedTuple):
    """A checkpoint folder, with the word vectors and frequencies of a collection."""

    folder: Path
    adapted: Path | None = None  # Word vectors that replace the folder's own
    idf: str = ""  # Source of word frequencies that replaces the training's

    def load(
        self, device: str = "cpu", name: str | None = None, batch_size: int = 256
    ) -> Model:
        """Load the model by :func:`tweetrerank.rerankers.checkpoint.load`."""

        def frequencies(training_source: str) -> Idf:
            return checkpoints.idf_from(self.idf or training_source)

        return checkpoints.load(
            self.folder, name, device, frequencies, self.adapted, batch_size
        )

    @property
    def frequencies(self) -> Path | None:
        """The file of the collection's word frequencies, or None if there is none."""
        _, _, path = self.idf.partition(":")[2].partition(":")
        return Path(path) if path else None

    @property
    def version(self) -> str:
        """Hash of all files that determine the scores.

        These are the checkpoint, the collection's vectors and word frequencies, and the
        λ. Raises RerankerError if a file cannot be read.
        """
        version = checkpoints.version_of(self.folder)
        paths = [path for path in (self.adapted, self.frequencies) if path]
        paths += [path for path in tuning_files(self.folder)[:-1] if path.exists()]
        for path in paths:
            try:
                content = path.read_bytes()
            except OSError as error:
                raise RerankerError(
                    f"{path}: cannot be read: {error.strerror}"
                ) from None
            version = hashlib.sha256(version.encode() + content).hexdigest()
        return version


def best_source(collection: Collection) -> Source:
    """Return the source of the best model that reranks a collection's candidates.

    A service loads it.
    """
    folder = directory_for(default_reranker(collection, is_mixed=True), collection)
    idf = named_frequencies(checkpoints.frequencies_of(folder), collection)
    return Source(folder, collection.adapted_file, idf)
