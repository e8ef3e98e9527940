"""Mix a model's scores with those of the first stage by a weight λ."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal, Self

import numpy as np

from tweetrerank.rerankers.explanation import Explanation
from tweetrerank.rerankers.model import Model, Progress, Scores, check_finite, silent
from tweetrerank.rerankers.pairs import FIRST_STAGE, Pairs, lists_of


def with_weight(
    model: Model, weight: float | None = None, origin: str = "tuned"
) -> Model:
    """Return the model mixed with the first stage by λ, by default the tuned λ.

    A model that reads lists or searches is returned as it is, because its score already
    takes the first stage into account. ``origin`` says in reports where λ comes from.
    Raises RerankerError if the tuned λ is needed and there is none.
    """
    if weight is None:
        weight = model.tuned_weight()
    if weight is None or model.reads != "posts":
        return model
    return Mixed.of(model, weight, origin)


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Mixed(Model):
    """A model with the score λ · model + (1 − λ) · first stage.

    This is equation 2 of Rao et al. (2019). The model reads lists, because both scores
    are scaled to [0, 1] over the pairs of a query. Without first-stage scores the
    result is the model's score. For a query whose first-stage scores are all unknown,
    the result has the model's order.
    """

    reads = "lists"

    model: Model
    weight: float  # λ, the model's share
    origin: str = "given"  # Origin of λ, for reports

    @classmethod
    def of(cls, model: Model, weight: float, origin: str = "given") -> Mixed:
        """Return the mixture of a model; λ is ``weight``."""
        shared = {
            field.name: getattr(model, field.name)
            for field in dataclasses.fields(Model)
        }
        return cls(model=model, weight=weight, origin=origin, **shared)

    def __reduce__(self) -> tuple[Any, ...]:
        return Mixed.of, (self.model, self.weight, self.origin)

    @property
    def families(self) -> Sequence[str]:
        """Feature families of the model."""
        return self.model.families

    @property
    def device(self) -> str:
        """Type of the device that computes the model's scores."""
        return self.model.device

    @property
    def reads_given(self) -> bool:
        """Whether texts suffice as input, with scores or order of one first stage."""
        return self.model.reads_given

    @property
    def explains(self) -> Literal["matches", "contributions", ""]:
        """Kind of explanation that the model gives; "" for none."""
        return self.model.explains

    @property
    def counts(self) -> Counter[str]:
        """Counts of the model's cache."""
        return self.model.counts

    @cached_property
    def signals(self) -> set[str]:
        """Signals of the model, and the first-stage scores that are mixed in."""
        if self.weight < 1:
            return self.model.signals | {FIRST_STAGE}
        return self.model.signals

    @property
    def description(self) -> str:
        """λ and where it comes from."""
        return f"λ = {self.weight:g} ({self.origin})"

    def explain(self, pairs: Pairs, rows: Sequence[int]) -> Explanation | None:
        """Explain the model's scores of the pairs ``rows``."""
        return self.model.explain(pairs, rows)

    def files(self) -> Mapping[str, bytes]:
        """Return the content of the model's files in a checkpoint, by file name."""
        return self.model.files()

    def warm_up(self) -> None:
        """Score a few pairs by the model, without mixing."""
        self.model.warm_up()

    def remembering(self, max_bytes: int) -> Self:
        """Return the same mixture of a model that has a cache of the posts it reads."""
        return dataclasses.replace(self, model=self.model.remembering(max_bytes))

    def score(self, pairs: Pairs, progress: Progress = silent) -> Scores:
        """Return the mixture [P], from 0 to 1.

        If λ is 1 or there are no first-stage scores, this is the model's score.
        """
        *_, (_, scores) = self.stages(pairs, progress)
        return scores

    def stages(
        self,
        pairs: Pairs,
        progress: Progress = silent,
        first_stage: str = "first stage",
    ) -> Iterator[tuple[str, Scores]]:
        """Yield the model's scores, then the mixture.

        There is no mixture if λ is 1 or the pairs have no first-stage scores. Each step
        is a (name, scores [P]) tuple.
        """
        scores = self.model.score(pairs, progress)
        yield self.name, scores
        first = pairs.signals.get(FIRST_STAGE)
        if self.weight == 1 or first is None:
            return
        mixture = np.zeros(len(pairs))
        for rows in lists_of(pairs.query_index):
            lexical = first[rows]
            if np.isnan(lexical).all():
                lexical = np.nan_to_num(lexical)
            mixture[rows] = mix(
                minmax(lexical.tolist()), minmax(scores[rows].tolist()), self.weight
            )
        check_finite(mixture)
        yield f"{self.name} + {first_stage} (λ = {self.weight:g})", mixture


def minmax(scores: Sequence[float]) -> list[float]:
    """Return (s − min) / (max − min) of each score s, from 0 to 1.

    If all scores are equal, each becomes 0.5. Other libraries choose 0 or 1 in this
    case; no constant changes a ranking.
    """
    low = min(scores, default=0.0)
    high = max(scores, default=0.0)
    if low == high:
        return [0.5] * len(scores)
    return [(score - low) / (high - low) for score in scores]


def mix(
    lexical: Sequence[float], neural: Sequence[float], weight: float
) -> list[float]:
    """Return ``weight`` · neural + (1 − ``weight``) · lexical of each pair.

    Both lists must already be normalised and of the same length.
    """
    pairs = zip(lexical, neural, strict=True)
    return [weight * new + (1 - weight) * first for first, new in pairs]
