"""Learned fusion by weights: a linear model over the features of :mod:`rerankers.models.fusion`.

Linear combinations of rankers with learned weights go back to Vogt & Cottrell (1999), *Fusion via
a Linear Combination of Scores*. Each feature x is standardised by the mean m and the standard
deviation d of the training pairs; a score is Σ w (x − m) / d. A NaN (a ranker without a score)
counts as the mean, so it adds 0. A feature that is constant or always NaN has the weight 0.

The weights minimise a listwise loss and an L2 penalty. The loss is the mean over topics of the
cross entropy between equal shares of the relevant candidates and the softmax of all scores (top-one
probabilities, Cao et al. 2007). L-BFGS finds its only minimum in double precision from weights of
0, without random numbers. In cross-validation by topic within the microblog years 2011 and 2012
this did better than logistic regression, and the penalty 0.1 better than 0.01 and 1. Correlated
features share a weight, so only the sum over a family can be interpreted.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from rerankers import features
from rerankers.base import Report
from rerankers.errors import RerankerError, require_above_zero, require_at_least
from rerankers.models._feature_model import DEPTH, MICROBLOG, MICROBLOG_DEPTH, FeatureModel, fused
from rerankers.text.vocabulary import Vocabulary


@dataclass(frozen=True)
class Config:
    """Hyperparameters."""

    families: str = fused()  # Names of files in rerankers/features
    penalty: float = 0.1  # λ of the L2 penalty λ/2 · |w|² beside the mean loss of a topic
    candidate_rankers: str = ""  # Signals whose best posts are the candidates; "" is all rankers
    depth: int = DEPTH  # Best posts of each of them that are scored; others rank below

    def __post_init__(self) -> None:
        features.names_of(self.families.split(","))
        require_above_zero(self, "penalty")
        require_at_least(self, depth=1)


class Model(FeatureModel):
    """A weight for each feature; see the module's docstring.

    An unfitted model raises RerankerError.
    """

    config_type = Config
    reads_rankers = True
    configurations: ClassVar[Mapping[str, Config]] = {
        "general": Config(),
        "microblog": Config(fused(*MICROBLOG), depth=MICROBLOG_DEPTH),
    }

    means: Tensor
    deviations: Tensor
    is_fitted: Tensor

    def __init__(self, config: Config, vocabulary: Vocabulary) -> None:
        super().__init__(config, vocabulary)
        count = len(self.names)
        zeros = torch.zeros(count, dtype=torch.float64)
        self.weights = nn.Parameter(zeros, requires_grad=False)
        self.register_buffer("means", zeros.clone())
        self.register_buffer("deviations", torch.ones(count, dtype=torch.float64))
        self.register_buffer("is_fitted", torch.zeros((), dtype=torch.bool))

    def head(self, representations: Tensor) -> Tensor:
        """Sum of the weighted features: [P]."""
        return self._weighted(representations).sum(dim=1).float()

    def contributions(self, representations: Tensor) -> Tensor:
        """Weight times standardised value of each feature: [P, K]; the score is their sum."""
        return self._weighted(representations).float()

    def importances(self) -> Mapping[str, float]:
        """Absolute weight of each standardised feature."""
        return dict(zip(self.names, self.weights.abs().tolist(), strict=True))

    def fit(
        self,
        representations: Tensor,
        relevant: Tensor,
        query_index: Tensor,
        progress: Report = lambda message: None,
    ) -> None:
        """Fit the weights."""
        values = representations.double().cpu()
        known = ~values.isnan()
        counts = known.sum(dim=0).clamp(min=1)
        means = torch.where(known, values, 0.0).sum(dim=0) / counts
        squares = torch.where(known, (values - means) ** 2, 0.0).sum(dim=0) / counts
        # The deviation of a constant feature is 0 but for rounding.
        varied = squares.sqrt() > 1e-9 * means.abs().clamp(min=1.0)
        self.means.copy_(means)
        self.deviations.copy_(torch.where(varied, squares.sqrt(), torch.inf))
        standardised = self._standardised(representations.to(self.means.device)).cpu()
        self.weights.copy_(_fit(standardised, relevant, query_index, self.config.penalty))
        self.is_fitted.fill_(True)

    def _standardised(self, representations: Tensor) -> Tensor:
        values = (representations.double() - self.means) / self.deviations
        return torch.where(values.isnan(), 0.0, values)

    def _weighted(self, representations: Tensor) -> Tensor:
        if not bool(self.is_fitted):
            raise RerankerError("found a model without weights; train it before it is used")
        # A matrix product may round differently for other numbers of pairs, or in bf16.
        return self._standardised(representations) * self.weights


def _fit(values: Tensor, relevant: Tensor, query_index: Tensor, penalty: float) -> Tensor:
    """The weights [K] that minimise the loss over the standardised features [P, K]."""
    _, row = query_index.unique(return_inverse=True)
    sizes = row.bincount()
    order = row.argsort(stable=True)
    place = torch.empty_like(row)
    place[order] = torch.arange(len(row)) - (sizes.cumsum(0) - sizes)[row[order]]
    shape = (len(sizes), int(sizes.max()))
    shares = values.new_zeros(shape).index_put((row, place), relevant.double())
    positives = shares.sum(dim=1, keepdim=True)
    shares /= positives.clamp(min=1.0)
    padding = values.new_full(shape, -torch.inf)
    weights = values.new_zeros(values.shape[1], requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [weights],
        max_iter=1000,
        history_size=20,
        tolerance_grad=1e-8,
        tolerance_change=1e-12,
        line_search_fn="strong_wolfe",
    )

    def loss() -> Tensor:
        optimizer.zero_grad()
        logs = padding.index_put((row, place), values @ weights).log_softmax(dim=1)
        entropy = -(shares * torch.where(shares > 0, logs, 0.0)).sum() / (positives > 0).sum()
        total = entropy + penalty / 2 * weights @ weights
        total.backward()
        return total

    optimizer.step(loss)
    return weights.detach()
