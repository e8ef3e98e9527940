"""The models that are served: scorers, mixing and calibration; reloading."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from threading import Lock

import numpy as np
import numpy.typing as npt

from pipeline.collections.collection import Collection
from pipeline.defaults import UNTUNED_WEIGHT
from pipeline.errors import DataError, UsageError
from pipeline.ranking.build import Source as Found
from pipeline.ranking.build import best_source
from pipeline.ranking.checkpoints import check_reads_given
from pipeline.ranking.tuning import Calibration, tuning_of
from pipeline.service.errors import RequestError
from pipeline.service.formats import Mix, ScoreRequest, ScoreResponse
from pipeline.service.record import LOG
from pipeline.service.worker import Here, Loaded, Scorer, Source, Workers
from rerankers import checkpoint as checkpoints
from rerankers.checkpoint import version_of
from rerankers.errors import RerankerError
from rerankers.interpolation import minmax, mix
from rerankers.pairs import FIRST_STAGE, PRIOR, numbers_of
from rerankers.reranker import Counts, Model

Scores = npt.NDArray[np.float64]

CERTAIN = 1e-9  # Least distance of a mixture from 0 and 1 where its logit is asked for


@dataclass(frozen=True)
class ServedModel:
    """A model that is ready to answer.

    Attributes:
        found: its files.
        version: hash of everything that its scores depend on.
        scorer: scores pairs by it, under its name.
        weight: λ, the neural score's share in a mixture.
        calibration: from scores to probabilities.
    """

    name: str
    found: Found
    version: str
    loaded: Loaded
    scorer: Scorer
    weight: float
    calibration: Calibration

    @cached_property
    def checkpoint(self) -> Model:
        """The model in this process, loaded when it is first needed: for the page."""
        folder, adapted = self.found
        return checkpoints.load(folder, device=self.loaded.device, adapted=adapted)

    @property
    def reads_lists(self) -> bool:
        """Whether it scores the documents of a request as a whole."""
        return FIRST_STAGE in self.loaded.signals

    @cached_property
    def numbers(self) -> list[str]:
        """Names of the numbers beside the texts that it reads."""
        return numbers_of(self.loaded.signals)

    @property
    def reads_prior(self) -> bool:
        """Whether a score depends on the place in the first stage's ranking."""
        return PRIOR in self.loaded.signals

    @property
    def counts(self) -> Counts:
        """Hits, misses and bytes of its kept posts."""
        return self.scorer.counts(self.name)

    def respond(
        self, request: ScoreRequest, logits: npt.NDArray[np.float32], later_first: bool = False
    ) -> ScoreResponse:
        """Scores and order of the documents from the model's logits [D].

        Of equal scores the earlier document comes first, or the later one (``later_first``).
        """
        keys: Scores = logits.astype(np.float64).round(9)
        is_mixed = request.mix != "neural" and request.first_stage is not None
        is_raw = request.raw or request.shift
        if is_mixed and not self.reads_lists:
            keys = np.round(self._mixed(request, keys), 12)
            chances = np.clip(keys, CERTAIN, 1 - CERTAIN) if is_raw else keys
            shown = np.log(chances / (1 - chances)) if is_raw else chances
        else:
            slope, intercept = self.calibration
            shown = slope * keys + intercept
            if not is_raw:
                shown = np.exp(-np.logaddexp(0.0, -shown))
        if is_raw:
            shown = shown - shown.min() if request.shift else shown
            texts = [f"{key:.9f}" if abs(key) < 1e6 else f"{key:.9e}" for key in shown.tolist()]
        else:
            texts = list(map(probability, shown.tolist()))
        if later_first:
            order = np.argsort(keys, kind="stable")[::-1]
        else:
            order = np.argsort(-keys, kind="stable")
        kind: Mix = "interpolated" if is_mixed else "neural"
        return ScoreResponse(request, self.name, kind, texts, order.tolist())

    def _mixed(self, request: ScoreRequest, logits: Scores) -> Scores:
        """[D] the tuned mixture of the model's scores and the first stage's, from 0 to 1."""
        first, neural = minmax(request.first_stage or ()), minmax(logits.tolist())
        return np.array(mix(first, neural, self.weight))


def probability(value: float) -> str:
    """A number from 0 to 1 in at most 16 characters; small ones keep ten digits."""
    return f"{value:.12f}" if value >= 1e-3 or not value else f"{value:.9e}"


def _tuned(directory: Path, loaded: Loaded) -> tuple[float, Calibration]:
    """λ, 1 of a model that reads the first stage's scores, and the calibration."""
    found = tuning_of(directory)
    weight = found.weight if found else UNTUNED_WEIGHT
    calibration = (found and found.calibration) or Calibration()
    return 1.0 if FIRST_STAGE in loaded.signals else weight, calibration


class Models:
    """The served models by name.

    Args:
        names: of shipped models, or folders.
        cache: bytes of kept posts, shared equally.
        processes: that score; none is this one, as for a GPU.
        collections: whose best models for given candidates are served besides.
        device: of networks.
        challenger: another model, for comparisons alone.

    Raises UsageError for two of the same name, RerankerError for one that cannot be loaded or
    served, DataError for a collection without a model.
    """

    def __init__(
        self,
        names: Sequence[str],
        cache: int,
        processes: int = 0,
        collections: Sequence[Collection] = (),
        device: str = "cpu",
        challenger: str | None = None,
    ) -> None:
        self._find = _sources(names, collections)
        self._challenger = "challenger of " + next(iter(self._find)) if challenger else ""
        if challenger:
            self._find[self._challenger] = partial(Found, checkpoints.find(challenger))
        self._cache, self._processes = cache // len(self._find), processes
        self._device, self._lock = device, Lock()
        self._all, problems = self._load({name: find() for name, find in self._find.items()})
        for problem in problems.values():
            raise problem

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
        """The model of this name, or the only one, which may answer to every name.

        Raises RequestError if there is no such model, or several and no name.
        """
        served = self.served
        if name is not None and name in served:
            return served[name]
        if len(served) == 1 and (name is None or takes_any):
            return self.default
        problem = "found no model" if name is None else f"found the model {name[:100]!r}"
        kind, expected = "value" if name is None else "model", ", ".join(served)
        raise RequestError(kind, f"{problem}, expected one of {expected}", ("model",))

    def _load(
        self, found: Mapping[str, Found]
    ) -> tuple[dict[str, ServedModel], dict[str, Exception]]:
        """Models loaded anew, and the problems of others; raises OSError, RerankerError."""
        versions = {name: source.version for name, source in found.items()}
        sources = {
            name: Source(folder, version_of(folder), adapted)
            for name, (folder, adapted) in found.items()
        }
        scorer: Here | Workers
        if self._processes and self._device == "cpu":
            scorer = Workers(sources, self._cache, self._processes)
        else:
            scorer = Here(sources, self._cache, self._device)
        models, problems = dict[str, ServedModel](), dict[str, Exception]()
        for name, loaded in scorer.start().items():
            source, version = found[name], versions[name]
            try:
                if isinstance(loaded, Exception):
                    raise loaded
                check_reads_given(loaded)
                if source.version != version:
                    raise RerankerError(f"{source.folder}: has changed while it was read")
                tuned = _tuned(source.folder, loaded)
                models[name] = ServedModel(name, source, version, loaded, scorer, *tuned)
            except Exception as error:
                problems[name] = error
        return models, problems

    def reload(self) -> None:
        """Load the models again if one has changed, and swap them in; a damaged one is logged.

        So does a collection that has a better model by now, or word vectors adapted to it.
        """
        with self._lock:
            found, problems, changed = dict[str, Found](), dict[str, Exception](), set[str]()
            for name, find in self._find.items():
                old = self._all[name]
                try:
                    found[name] = find()
                    now = *_tuned(found[name].folder, old.loaded), found[name].version
                    if now != (old.weight, old.calibration, old.version):
                        changed.add(name)
                except (RerankerError, DataError, OSError, ValueError) as error:
                    found.pop(name, None)
                    problems[name] = error
            models: dict[str, ServedModel] = {}
            if changed:
                try:
                    models, others = self._load(found)
                    problems |= others
                except (RerankerError, DataError, OSError, ValueError) as error:
                    problems |= dict.fromkeys(found, error)
            # A new dictionary: a request sees all of it or nothing.
            self._all = {**self._all, **models}
            for name in self._find:
                if name in problems:
                    LOG.error("%s: the old model stays: %s", name, problems[name])
                elif name in changed:
                    LOG.info("%s: loaded again from %s", name, found[name].folder)
                else:
                    LOG.info("%s: unchanged", name)


def _sources(
    names: Sequence[str], collections: Sequence[Collection]
) -> dict[str, Callable[[], Found]]:
    """Name in requests -> a function that finds the model's files as they are now."""
    sources: dict[str, Callable[[], Found]] = {}
    for given in names:
        try:
            folder = checkpoints.find(given)
        except RerankerError as error:
            raise UsageError(f"--checkpoint: {error}") from None
        is_shipped = folder.is_relative_to(checkpoints.SHIPPED)
        name = given if is_shipped and given == folder.parent.name else folder.resolve().name
        if name in sources:
            raise UsageError(f"--checkpoint: found two models of the name {name}, expected one")
        sources[name] = partial(Found, folder)
    for collection in collections:
        if collection.name in sources:
            raise UsageError(f"--collection: found {collection.name} twice, expected other names")
        sources[collection.name] = partial(best_source, collection)
    return sources
