"""The linear fusion against plain formulas, and its checkpoint."""

import numpy as np
import pytest
import torch
from helpers.fusion_samples import fit, pairs_that_rm3_orders, represented
from helpers.reranking_samples import all_pairs, encoder, vocabulary
from scipy.optimize import minimize

from rerankers.errors import RerankerError
from rerankers.models.linear_fusion import Config, Model
from rerankers.scoring import batches as scoring

SMALL = "signal:rm3,signal:ql,signal:unknown,first_stage,links"


def unfitted(families: str = SMALL, penalty: float = 0.1) -> Model:
    return Model(Config(families, penalty), vocabulary())


def fitted(families: str = SMALL, penalty: float = 0.1) -> Model:
    model = unfitted(families, penalty)
    fit(model, *pairs_that_rm3_orders())
    return model


@pytest.fixture(scope="module")
def model() -> Model:
    return fitted(f"{SMALL},overlap")


def naive_loss(
    weights: np.ndarray,
    values: np.ndarray,
    relevant: np.ndarray,
    queries: np.ndarray,
    penalty: float,
) -> float:
    """The docstring's formula, topic by topic."""
    losses = []
    for query in np.unique(queries):
        scores, positive = values[queries == query] @ weights, relevant[queries == query]
        shares = np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()
        if positive.any():
            losses.append(-np.log(shares[positive]).mean())
    return float(np.mean(losses) + penalty / 2 * (weights**2).sum())


@pytest.mark.parametrize("penalty", [0.01, 1.0])
def test_the_weights_have_the_least_loss(penalty: float) -> None:
    """Another optimiser, with gradients by differences, finds the same weights.

    Topics are of different sizes, pairs in any order, and one topic has nothing relevant.
    """
    random = np.random.default_rng(2)
    queries = random.integers(0, 6, size=150)
    values = random.normal(size=(150, 7)).astype(np.float32)
    relevant = (values[:, 0] + random.normal(size=150) > 0.5) & (queries != 3)
    model = unfitted("overlap,first_stage", penalty)
    model.fit(*map(torch.from_numpy, (values, relevant, queries)))
    exact = values.astype(np.float64)
    standardised = (exact - exact.mean(axis=0)) / exact.std(axis=0)
    found = minimize(naive_loss, np.zeros(7), (standardised, relevant, queries, penalty), tol=1e-10)
    np.testing.assert_allclose(model.weights.numpy(), found.x, atol=1e-4)
    np.testing.assert_allclose(
        model.head(torch.from_numpy(values)).numpy(),
        standardised @ model.weights.numpy(),
        rtol=1e-5,
        atol=1e-5,
    )


def test_unknown_values_count_as_the_mean_of_the_known(model: Model) -> None:
    pairs, _ = pairs_that_rm3_orders()
    values = represented(model, pairs)
    unknown = torch.isnan(values)
    assert unknown.any() and unknown.all(dim=0).any() and not unknown.all()
    means = values.double().nanmean(dim=0).nan_to_num()  # 0 where nothing is known
    filled = torch.where(unknown, means.float(), values)
    torch.testing.assert_close(model.head(filled), model.head(values), rtol=1e-5, atol=1e-5)
    assert not model.contributions(values)[unknown].any()


def test_contributions_add_up_to_the_scores(model: Model) -> None:
    values = represented(model, pairs_that_rm3_orders()[0])
    parts = model.contributions(values)
    assert parts.shape == values.shape
    torch.testing.assert_close(parts.sum(dim=1), model.head(values), rtol=1e-5, atol=1e-5)


def test_weights_that_are_nan_are_an_error(model: Model) -> None:
    broken = unfitted(model.config.families)
    broken.load_state_dict(model.state_dict())
    broken.weights[0] = torch.nan
    with pytest.raises(RerankerError, match="scores that are not finite numbers"):
        scoring.score(broken, all_pairs(), encoder())
