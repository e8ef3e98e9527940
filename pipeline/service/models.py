"""The models that are served: from raw scores to answers; reloading."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import numpy.typing as npt

from pipeline.collections.collection import Collection
from pipeline.errors import DataError, UsageError
from pipeline.ranking.build import Source, best_source
from pipeline.service.formats import Mix, ScoreRequest, ScoreResponse
from pipeline.service.record import LOG
from pipeline.service.requests import RequestError
from pipeline.service.worker import Loaded, Scorer, Workers
from rerankers import checkpoint as checkpoints
from rerankers.errors import RerankerError
from rerankers.pairs import FIRST_STAGE, numbers_of
from rerankers.reranker import Model

CERTAIN = 1e-9  # Least distance of a mixture from 0 and 1 where its logit is asked for
DAMAGES = RerankerError, DataError, OSError, ValueError


@dataclass(frozen=True)
class ServedModel:
    """A model that is ready to answer. ``scorer`` scores pairs by it, under its name."""

    name: str
    source: Source
    loaded: Loaded
    scorer: Scorer

    @cached_property
    def checkpoint(self) -> Model:
        """The model in this process, without λ, loaded when it is first needed: for the page."""
        folder, adapted = self.source
        return checkpoints.load(folder, device=self.loaded.device, adapted=adapted)

    @cached_property
    def numbers(self) -> list[str]:
        """Names of the numbers beside the texts that it reads."""
        return numbers_of(self.loaded.signals)

    def respond(
        self, request: ScoreRequest, scores: npt.NDArray[np.floating], later_first: bool = False
    ) -> ScoreResponse:
        """Probabilities or logits, and order of the documents, from the model's scores [D]; of
        equal ones the earlier document comes first, or the later one (``later_first``)."""
        is_given = request.mix != "neural" and request.first_stage is not None
        keys = scores.astype(np.float64)
        if is_given and not self.loaded.reads_lists and FIRST_STAGE in self.loaded.signals:
            keys = chances = keys.round(12)  # A mixture
            certain = np.clip(keys, CERTAIN, 1 - CERTAIN)
            logits = np.log(certain / (1 - certain))
        else:
            keys, (slope, intercept) = keys.round(9), self.loaded.calibration
            logits = slope * keys + intercept
            chances = np.exp(-np.logaddexp(0.0, -logits))
        if request.raw or request.shift:
            logits = logits - logits.min() if request.shift else logits
            shown = [f"{key:.9f}" if abs(key) < 1e6 else f"{key:.9e}" for key in logits.tolist()]
        else:
            shown = [*map(probability, chances.tolist())]
        order = np.argsort(keys if later_first else -keys, kind="stable")
        order = order[::-1] if later_first else order
        mix: Mix = "interpolated" if is_given else "neural"
        return ScoreResponse(request, self.name, mix, shown, order.tolist())


def probability(value: float) -> str:
    """A number from 0 to 1 in at most 16 characters; small ones keep ten digits."""
    return f"{value:.12f}" if value >= 1e-3 or not value else f"{value:.9e}"


class Models:
    """The served models by name.

    Raises UsageError for two of the same name, RerankerError for one that cannot be loaded or
    served, DataError for a collection without a model.
    """

    def __init__(
        self,
        names: Sequence[str],  # Of shipped models, or folders
        cache: int,  # Bytes of the kept posts of all
        processes: int = 0,  # That score; without any this one does, as for a GPU
        collections: Sequence[Collection] = (),  # Whose best models are served besides
        device: str = "cpu",  # Of networks
        challenger: str | None = None,  # Another model, for comparisons alone
    ) -> None:
        self._find = _sources(names, collections)
        self._challenger = "challenger of " + next(iter(self._find)) if challenger else ""
        if challenger:
            self._find[self._challenger] = partial(Source, checkpoints.find(challenger))
        self._cache, self._processes, self._device = cache // len(self._find), processes, device
        self._all: dict[str, ServedModel] = {}
        for outcome in self._update().values():
            if isinstance(outcome, Exception):
                raise outcome

    @property
    def served(self) -> Mapping[str, ServedModel]:
        """Name -> model; the first is the default."""
        return {name: m for name, m in self._all.items() if name != self._challenger}

    @property
    def default(self) -> ServedModel:
        """The first model."""
        return next(iter(self._all.values()))

    @property
    def challenger(self) -> ServedModel | None:
        """The model that is compared with the default one."""
        return self._all.get(self._challenger)

    @property
    def numbers(self) -> tuple[str, ...]:
        """Names of the numbers beside the texts that any of them reads."""
        return tuple(sorted({name for model in self._all.values() for name in model.numbers}))

    def choose(self, name: str | None, takes_any: bool) -> ServedModel:
        """The model of this name, or the only one, which may answer to every name; RequestError if
        there is no such model, or several and no name."""
        served = self.served
        if name is not None and name in served:
            return served[name]
        if len(served) == 1 and (name is None or takes_any):
            return self.default
        kind, problem = "model", f"found the model {name and name[:100]!r}"
        if name is None:
            kind, problem = "value", "found no model"
        raise RequestError(kind, f"model: {problem}, expected one of {', '.join(served)}")

    def reload(self) -> None:
        """Load the models again if one has changed, or is no longer the best for its collection,
        and swap them in; a damaged one is logged, and the old one stays."""
        for name, outcome in self._update().items():
            if isinstance(outcome, Exception):
                LOG.error("%s: the old model stays: %s", name, outcome)
            else:
                LOG.info("%s: %s", name, outcome)

    def _update(self) -> dict[str, str | Exception]:
        """Load all models if one has changed; name -> outcome."""
        sources, outcomes, is_new = dict[str, Source](), dict[str, str | Exception](), False
        for name, find in self._find.items():
            try:
                source, old = find(), self._all.get(name)
                is_same = old is not None and source.version == old.loaded.version
                outcomes[name] = "unchanged" if is_same else f"loaded again from {source.folder}"
                sources[name], is_new = source, is_new or not is_same
            except DAMAGES as error:
                outcomes[name] = error
        if not is_new:
            return outcomes
        try:
            if self._processes and self._device == "cpu":
                scorer: Scorer = Workers(sources, self._cache, self._processes)
            else:
                scorer = Scorer(sources, self._cache, self._device)
        except DAMAGES as error:
            return outcomes | dict.fromkeys(sources, error)
        models = dict(self._all)
        for name, loaded in scorer.loaded.items():
            if isinstance(loaded, Exception):
                outcomes[name] = loaded
            else:
                models[name] = ServedModel(name, sources[name], loaded, scorer)
        self._all = models  # As a whole: a request sees all of it or nothing.
        return outcomes


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
