"""Logistic regression of a few features, by L-BFGS."""

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


def logistic_regression(
    features: npt.ArrayLike,
    relevant: npt.ArrayLike,
    weights: npt.ArrayLike | None = None,
    penalty: float = 0.0,
) -> tuple[FloatArray, float]:
    """Coefficients [K] and intercept that minimise the log-loss.

    Args:
        features: [N, K].
        relevant: [N], truth values, both of them present.
        weights: of the rows, [N]; all 1 by default.
        penalty: half of the coefficients' squared length is added to the sum of the losses so many
            times; that of the intercept is not.
    """
    from scipy import optimize, special

    x, y = np.asarray(features, dtype=np.float64), np.asarray(relevant, dtype=np.float64)
    w = np.ones(len(y)) if weights is None else np.asarray(weights, dtype=np.float64)
    w, penalty = w / w.sum(), penalty / w.sum()

    def loss(parameters: FloatArray) -> tuple[float, FloatArray]:
        """Mean loss with the penalty, and its gradient [K + 1]; the intercept comes last."""
        coefficients = parameters[:-1]
        logits = x @ coefficients + parameters[-1]
        error = w * (special.expit(logits) - y)
        value = w @ (np.logaddexp(0, logits) - y * logits)
        gradient = np.append(error @ x + penalty * coefficients, error.sum())
        return float(value + penalty / 2 * coefficients @ coefficients), gradient

    result = optimize.minimize(
        loss,
        np.zeros(x.shape[1] + 1),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": 1000, "maxls": 50, "gtol": 1e-4, "ftol": 1e-14},
    ).x
    return result[:-1], float(result[-1])
