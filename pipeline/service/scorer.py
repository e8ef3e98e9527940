"""A model that is ready to answer, and the scorer that runs in this process."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from tweetrerank.pipeline.ranking.build import Source, mixed
from tweetrerank.pipeline.ranking.checkpoints import check_reads_given
from tweetrerank.pipeline.ranking.interpolation import Calibration, tuning_of
from tweetrerank.pipeline.service.score_request import Mix, ScoreRequest
from tweetrerank.pipeline.service.score_response import (
    RankedScores,
    ScoreResponse,
    best_first,
)
from tweetrerank.rerankers.model import Model
from tweetrerank.rerankers.pairs import FIRST_STAGE, Pairs, numbers_of
from tweetrerank.rerankers.reranker_error import RerankerError
from tweetrerank.rerankers.text.passages import best_passages

Scores = npt.NDArray[np.floating]


@dataclass(frozen=True)
class ServedModel:
    """A loaded model. Its ``scorer`` runs it under its name."""

    name: str
    source: Source
    version: str  # Identifies the content of its files
    device: str
    signals: set[str]
    reads_lists: bool  # Whether each score depends on all documents
    weight: float  # λ, for /v1/models
    calibration: Calibration
    scorer: Scorer = field(default=None, compare=False)  # type: ignore[assignment]

    @cached_property
    def checkpoint(self) -> Model:
        """The model itself, loaded into this process at its first use.

        The page needs it, because it mixes the model with a first stage by another λ.
        """
        return self.source.load(self.device)

    @cached_property
    def numbers(self) -> list[str]:
        """Names of the numbers that the model reads from documents."""
        return numbers_of(self.signals)

    def respond(self, request: ScoreRequest, scores: Scores) -> ScoreResponse:
        """Return the response to a request, given the model's scores [D].

        :func:`tweetrerank.pipeline.service.score_response.best_first` orders the
        documents, and decides between equal scores.
        """
        mix: Mix = "neural"
        if request.options.mix != "neural" and request.first_stage is not None:
            mix = "interpolated"
        reads_first_stage = not self.reads_lists and FIRST_STAGE in self.signals
        if mix == "interpolated" and reads_first_stage:
            results = RankedScores.of_mixture(scores)
        else:
            results = RankedScores.calibrated(scores, self.calibration)
        if request.weight is not None and request.first_stage is not None:
            results = results.mixed_with(request.first_stage, request.weight)
        order = best_first(results.keys, later_first=request.options.is_tei)
        texts = results.texts(request.options)
        return ScoreResponse(request, self.name, mix, texts, order)


def load(
    name: str, source: Source, cache: int, device: str
) -> tuple[Model, ServedModel]:
    """Load a model that keeps encoded posts in up to ``cache`` bytes.

    Returns the model, and its description as a served model, still without a scorer.
    Raises RerankerError or DataError if the model is damaged or unsuitable, or if its
    files change while they are read.
    """
    version = source.version
    tuning = tuning_of(source.folder)
    plain = source.load(device)
    check_reads_given(plain)
    model = mixed(plain, has_scores=True).remembering(cache)
    if source.version != version:
        raise RerankerError(f"{source.folder}: has changed while it was read")
    model.warm_up()
    served = ServedModel(
        name,
        source,
        version,
        model.device,
        model.signals,
        reads_lists=plain.reads == "lists",
        weight=getattr(model, "weight", 1.0),
        calibration=(tuning and tuning.calibration) or Calibration(),
    )
    return model, served


class Scorer:
    """Scores in threads of this process, as a GPU requires.

    ``loaded`` maps the name of each model to the loaded model, or to the error that
    its loading raised.
    """

    def __init__(
        self, sources: Mapping[str, Source], cache: int, device: str = "cpu"
    ) -> None:
        self._models: dict[str, Model] = {}
        self.loaded: dict[str, ServedModel | Exception] = {}
        for name, source in sources.items():
            try:
                model, served = load(name, source, cache, device)
            except Exception as error:
                self.loaded[name] = error
            else:
                self._models[name] = model
                self.loaded[name] = served

    async def ask(self, name: str, pairs: Pairs) -> Scores:
        """Do the work of :meth:`score` in a thread, and return its scores."""
        return await asyncio.to_thread(self.score, name, pairs)

    def score(self, name: str, pairs: Pairs) -> Scores:
        """Return a model's scores [P] of the pairs of one query.

        A long text gets the score of its best passage. Raises RerankerError if the
        model cannot score the pairs.
        """
        queries = list(pairs.queries[:1]) * len(pairs.texts)
        texts = best_passages(queries, pairs.texts)
        return self._models[name].score(replace(pairs, texts=texts))

    def counts(self, name: str) -> Counter[str]:
        """Return the ``hits``, ``misses`` and ``bytes`` of a model's cache of posts."""
        return self._models[name].counts
