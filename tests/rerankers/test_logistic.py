"""Logistic regression, compared with scikit-learn's."""

import math

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from rerankers.logistic import logistic_regression


@pytest.mark.parametrize("penalty", [0.0, 0.01, 5.0])
@pytest.mark.parametrize("scale", [0.01, 1.0, 40.0])
def test_it_is_that_of_scikit_learn(penalty: float, scale: float) -> None:
    random = np.random.default_rng(1)
    features = random.normal(size=(400, 3)) * scale
    relevant = features @ [1, 2, 0] / scale + random.logistic(size=400) > 1
    weights = random.random(400) + 0.1
    other = LogisticRegression(C=1 / penalty if penalty else math.inf, max_iter=1000)
    other.fit(features, relevant, weights)
    coefficients, intercept = logistic_regression(features, relevant, weights, penalty)
    np.testing.assert_allclose(coefficients, other.coef_[0], rtol=1e-6)
    assert intercept == pytest.approx(other.intercept_[0], rel=1e-6)
