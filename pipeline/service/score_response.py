"""The response to a request for scores: shown scores, and order of the documents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from tweetrerank.pipeline.ranking.interpolation import Calibration
from tweetrerank.pipeline.service.score_request import Mix, Request, ScoreRequest
from tweetrerank.rerankers.mixed import minmax, mix

CERTAIN = 1e-9  # Least distance of a mixture from 0 and 1, so that it has a logit

Floats = npt.NDArray[np.floating]


@dataclass(frozen=True)
class ScoreResponse:
    """Scores of a request [D] as JSON, and the rows of the documents, best first."""

    request: ScoreRequest
    model: str
    mix: Mix
    scores: Sequence[str]
    order: Sequence[int]

    def best(self) -> Iterator[tuple[int, str]]:
        """Return (row, score) of the requested number of documents, best first."""
        options = self.request.options
        rows = self.order[: options.top_n or options.top_k or None]
        return ((row, self.scores[row]) for row in rows)


@dataclass(frozen=True)
class RankedScores:
    """Final scores of D documents, in the three forms of a response."""

    keys: Floats  # [D] sorting keys, rounded so that equal documents tie
    probabilities: Floats  # [D]
    logits: Floats  # [D]

    @classmethod
    def of_mixture(cls, scores: Floats) -> RankedScores:
        """Return the forms of scores [D] mixed with the first stage's, from 0 to 1."""
        keys = scores.astype(np.float64).round(12)
        certain = np.clip(keys, CERTAIN, 1 - CERTAIN)
        return cls(keys, keys, np.log(certain / (1 - certain)))

    @classmethod
    def calibrated(cls, scores: Floats, calibration: Calibration) -> RankedScores:
        """Return the forms of a model's scores [D]."""
        keys = scores.astype(np.float64).round(9)
        logits = calibration.slope * keys + calibration.intercept
        return cls(keys, np.exp(-np.logaddexp(0.0, -logits)), logits)

    def mixed_with(self, first_stage: Sequence[float], weight: float) -> RankedScores:
        """Return a mixture with the first stage [D], both normalised by min–max."""
        normalized = minmax(self.logits.tolist())
        mixture = np.array(mix(minmax(first_stage), normalized, weight)).round(12)
        return replace(self, keys=mixture, probabilities=mixture)

    def texts(self, options: Request) -> list[str]:
        """Return the scores that the request wants, as JSON [D]."""
        is_raw = options.raw_scores or options.use_activation is False
        if not is_raw and not options.shift:
            return list(map(_probability, self.probabilities.tolist()))
        logits = self.logits
        if options.shift:
            logits = logits - logits.min()
        return list(map(_logit, logits.tolist()))


def best_first(keys: Floats, later_first: bool = False) -> list[int]:
    """Return the rows of the documents, highest key [D] first.

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
    """Return a number from 0 to 1 in 16 characters; small ones keep ten digits."""
    if value >= 1e-3 or not value:
        return f"{value:.12f}"
    return f"{value:.9e}"
