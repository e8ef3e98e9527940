"""The models that are served: checkpoint, mixing and calibration; reloading."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock

import numpy as np
import numpy.typing as npt
from orjson import Fragment

from pipeline.collections.collection import Collection
from pipeline.defaults import UNTUNED_WEIGHT
from pipeline.errors import DataError, UsageError
from pipeline.ranking.build import Source, best_source
from pipeline.ranking.checkpoints import (
    Calibration,
    calibration_of,
    check_reads_given,
    tuned_weight,
)
from pipeline.service.errors import RequestError
from pipeline.service.formats import Mix, ScoreRequest, ScoreResponse
from pipeline.service.http.processes import ParallelScorer
from pipeline.service.record import LOG
from rerankers import checkpoint as checkpoints
from rerankers.checkpoint import version_of
from rerankers.errors import RerankerError
from rerankers.interpolation import minmax, mix
from rerankers.pairs import PRIOR
from rerankers.reranker import Model

Scores = npt.NDArray[np.float64]

Scorer = Model | ParallelScorer


@dataclass(frozen=True)
class ServedModel:
    """A model that is ready to answer.

    Attributes:
        scorer: scores pairs with the checkpoint, in any thread.
        weight: λ, the neural score's share in a mixture.
        calibration: from scores to probabilities.
        version: hash of everything that the model's scores depend on.
    """

    name: str
    checkpoint: Model
    scorer: Scorer
    weight: float
    calibration: Calibration
    version: str

    @classmethod
    def load(
        cls, name: str, source: Source, cache: int, processes: int, device: str = "cpu"
    ) -> ServedModel:
        """Read a checkpoint folder; ``cache`` are bytes, 1 process is the calling one, and a GPU's.

        Raises RerankerError if it is damaged or needs more than a query and posts, DataError for
        a damaged λ or calibration.
        """
        directory, adapted = source
        whole, version, parallel = source.version, version_of(directory), None
        parallel_parts = directory, version, cache, processes, adapted
        if processes > 1 and device == "cpu":  # It loads the same model, at the same time.
            parallel = ParallelScorer(*parallel_parts)
        weight, calibration = _tuned(directory)
        checkpoint = checkpoints.load(directory, None, device, None, adapted)
        if processes > 1 and checkpoint.device == "cpu":
            parallel = parallel or ParallelScorer(*parallel_parts)
        if source.version != whole:
            raise RerankerError(f"{directory}: has changed while it was read; load it again")
        check_reads_given(checkpoint)
        scorer = parallel or checkpoint.remembering(cache)
        scorer.warm_up()
        weight = weight if checkpoint.reads == "posts" else 1.0
        return cls(name, checkpoint, scorer, weight, calibration, whole)

    @property
    def reads_windows(self) -> bool:
        """Whether it scores the documents of a request as a whole."""
        return self.checkpoint.reads == "lists"

    @property
    def reads_prior(self) -> bool:
        """Whether a score depends on the place in the first stage's ranking."""
        return PRIOR in self.checkpoint.signals

    def respond(
        self, request: ScoreRequest, logits: npt.NDArray[np.float32], later_first: bool = False
    ) -> ScoreResponse:
        """Scores and order of the documents from the model's logits [D].

        Of equal scores the earlier document comes first, or the later one (``later_first``).
        """
        keys: Scores = logits.astype(np.float64).round(9)
        is_mixed = request.mix != "neural" and request.first_stage is not None
        if is_mixed and not self.reads_windows:
            keys = np.round(self._mixed(request, keys), 12)
            texts = list(map(probability, keys.tolist()))
        elif request.raw or request.shift:
            keys = keys - keys.min() if request.shift else keys
            texts = [f"{key:.9f}" if abs(key) < 1e6 else f"{key:.9e}" for key in keys.tolist()]
        else:
            slope, intercept = self.calibration
            chances = np.exp(-np.logaddexp(0.0, -(slope * keys + intercept)))
            texts = list(map(probability, chances.tolist()))
        if later_first:
            order = np.argsort(keys, kind="stable")[::-1]
        else:
            order = np.argsort(-keys, kind="stable")
        kind: Mix = "interpolated" if is_mixed else "neural"
        return ScoreResponse(request, self.name, kind, list(map(Fragment, texts)), order.tolist())

    def _mixed(self, request: ScoreRequest, logits: Scores) -> Scores:
        """[D] the tuned mixture of the model's scores and the first stage's, from 0 to 1."""
        first, neural = minmax(request.first_stage or ()), minmax(logits.tolist())
        return np.array(mix(first, neural, self.weight))


def probability(value: float) -> str:
    """A number from 0 to 1 in at most 16 characters; small ones keep ten digits."""
    return f"{value:.12f}" if value >= 1e-3 or not value else f"{value:.9e}"


def _tuned(directory: Path) -> tuple[float, Calibration]:
    tuned = tuned_weight(directory)
    weight = tuned[0] if tuned else UNTUNED_WEIGHT
    return weight, calibration_of(directory) or Calibration()


class Models:
    """The served models by name.

    Args:
        checkpoints: names of shipped models, or folders.
        cache: bytes of kept encodings, shared equally.
        processes: of each model that score; 1 is the calling one.
        collections: whose best models for given candidates are served besides.
        device: of networks.

    Raises UsageError for two of the same name, RerankerError for one that cannot be loaded or
    served, DataError for a collection without a model.
    """

    def __init__(
        self,
        checkpoints: Sequence[str],
        cache: int,
        processes: int = 1,
        collections: Sequence[Collection] = (),
        device: str = "cpu",
    ) -> None:
        self._find = _sources(checkpoints, collections)
        self._loading = cache // len(self._find), processes, device
        self._served = {
            name: ServedModel.load(name, find(), *self._loading)
            for name, find in self._find.items()
        }
        self._lock = Lock()

    @property
    def served(self) -> Mapping[str, ServedModel]:
        """Name -> model; the first is the default."""
        return self._served

    @property
    def default(self) -> ServedModel:
        """The first model."""
        return next(iter(self._served.values()))

    def choose(self, name: str | None, takes_any: bool) -> ServedModel:
        """The model of this name, or the only one, which may answer to every name.

        Raises RequestError if there is no such model, or several and no name.
        """
        if name in self._served:
            return self._served[name]
        if len(self._served) == 1 and (name is None or takes_any):
            return self.default
        problem = "found no model" if name is None else f"found the model {name[:100]!r}"
        kind = "value" if name is None else "model"
        expected = ", ".join(self._served)
        raise RequestError(kind, f"{problem}, expected one of {expected}", ("model",))

    def reload(self) -> None:
        """Load folders that have changed and swap them in; a damaged one is logged only.

        So does a collection that has a better model by now, or word vectors adapted to it.
        """
        with self._lock:
            for name, find in self._find.items():
                old = self._served[name]
                try:
                    source = find()
                    tuned = *_tuned(source.folder), source.version
                    if tuned == (old.weight, old.calibration, old.version):
                        LOG.info("%s: unchanged", name)
                        continue
                    model = ServedModel.load(name, source, *self._loading)
                except (RerankerError, DataError, OSError, ValueError) as error:
                    LOG.error("%s: the old model stays: %s", name, error)
                    continue
                # A new dictionary: a request sees all of it or nothing.
                self._served = {**self._served, name: model}
                LOG.info("%s: loaded again from %s", name, source.folder)


def _sources(
    names: Sequence[str], collections: Sequence[Collection]
) -> dict[str, Callable[[], Source]]:
    """Name in requests -> a function that finds the model's files as they are now."""
    sources: dict[str, Callable[[], Source]] = {}
    for given in names:
        try:
            folder = checkpoints.find(given)
        except RerankerError as error:
            raise UsageError(f"--checkpoint: {error}") from None
        is_shipped = folder.is_relative_to(checkpoints.SHIPPED)
        name = given if is_shipped and given == folder.parent.name else folder.resolve().name
        if name in sources:
            raise UsageError(f"--checkpoint: found two models of the name {name}, expected one")
        sources[name] = partial(Source, folder)
    for collection in collections:
        if collection.name in sources:
            raise UsageError(f"--collection: found {collection.name} twice, expected other names")
        sources[collection.name] = partial(best_source, collection)
    return sources
