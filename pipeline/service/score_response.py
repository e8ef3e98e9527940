"""The response to a request for scores: the scores shown, and the documents' order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from tweetrerank.pipeline.ranking.interpolation import Calibration
from tweetrerank.pipeline.service.score_request import Mix, Request, ScoreRequest
from tweetrerank.rerankers.mixed import minmax, mix

CERTAIN = 1e-9  # A mixture is kept this far from 0 and 1, so that its logit is finite

Floats = npt.NDArray[np.floating]


@dataclass(frozen=True)
class ScoreResponse:
    """The answer to a request with D documents.

    ``scores`` has the score of each document, written as JSON, in the order of the
    request. ``order`` lists the rows of the documents, best first.
    """

    request: ScoreRequest
    model: str
    mix: Mix
    scores: Sequence[str]
    order: Sequence[int]

    def best(self) -> Iterator[tuple[int, str]]:
        """Return the (row, score) pairs of the best documents, best first.

        There are as many as the request asks for with ``top_n`` or ``top_k``. If it
        asks for no number, all documents are returned.
        """
        options = self.request.options
        rows = self.order[: options.top_n or options.top_k or None]
        return ((row, self.scores[row]) for row in rows)


@dataclass(frozen=True)
class RankedScores:
    """Final scores of D documents, in the three forms that a response can use."""

    keys: Floats  # [D] sorting keys, rounded so that equal documents tie
    probabilities: Floats  # [D]
    logits: Floats  # [D]

    @classmethod
    def of_mixture(cls, scores: Floats) -> RankedScores:
        """Return all forms of scores [D] that are already mixed with the first stage's.

        These scores lie between 0 and 1.
        """
        keys = scores.astype(np.float64).round(12)
        certain = np.clip(keys, CERTAIN, 1 - CERTAIN)
        return cls(keys, keys, np.log(certain / (1 - certain)))

    @classmethod
    def calibrated(cls, scores: Floats, calibration: Calibration) -> RankedScores:
        """Return all forms of a model's own scores [D], calibrated as probabilities."""
        keys = scores.astype(np.float64).round(9)
        logits = calibration.slope * keys + calibration.intercept
        return cls(keys, np.exp(-np.logaddexp(0.0, -logits)), logits)

    def mixed_with(self, first_stage: Sequence[float], weight: float) -> RankedScores:
        """Return these scores mixed with the scores of the first stage [D].

        Both are normalised by min–max first, and ``weight`` is the share of these
        scores. The logits stay those of the model alone.
        """
        normalized = minmax(self.logits.tolist())
        mixture = np.array(mix(minmax(first_stage), normalized, weight)).round(12)
        return replace(self, keys=mixture, probabilities=mixture)

    def texts(self, options: Request) -> list[str]:
        """Return the scores [D] in the form that the request wants, written as JSON."""
        is_raw = options.raw_scores or options.use_activation is False
        if not is_raw and not options.shift:
            return list(map(_probability, self.probabilities.tolist()))
        logits = self.logits
        if options.shift:
            logits = logits - logits.min()
        return list(map(_logit, logits.tolist()))


def best_first(keys: Floats, later_first: bool = False) -> list[int]:
    """Return the rows of the documents, ordered from the highest key [D] to the lowest.

    Documents with equal keys keep the order of the request. With ``later_first``, as in
    Text Embeddings Inference, the later one comes first.
    """
    if later_first:
        return np.argsort(keys, kind="stable").tolist()[::-1]
    return np.argsort(-keys, kind="stable").tolist()


def _logit(value: float) -> str:
    if abs(value) < 1e6:
        return f"{value:.9f}"
    return f"{value:.9e}"


def _probability(value: float) -> str:
    """Write a number from 0 to 1 as JSON, in at most 16 characters.

    Numbers below 0.001 are written with an exponent, so that they keep ten digits.
    """
    if value >= 1e-3 or not value:
        return f"{value:.12f}"
    return f"{value:.9e}"
