"""Logistic regression of a few features, by L-BFGS."""

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


def logistic_regression(
    features: npt.ArrayLike,
    relevant: npt.ArrayLike,
    weights: npt.ArrayLike = 1,
    penalty: float = 0,
) -> tuple[FloatArray, float]:
    """Coefficients [K] and intercept that minimise the log-loss. ``features`` are [N, K];
    ``relevant`` [N] truth values, both of them present; ``weights`` [N] those of the rows. Half of
    the coefficients' squared length, without that of the intercept, is added to the sum of the
    losses ``penalty`` times."""
    from scipy import optimize, special

    x, y = (
        np.asarray(features, dtype=np.float64),
        np.asarray(relevant, dtype=np.float64),
    )
    w = np.broadcast_to(np.asarray(weights, dtype=np.float64), y.shape)
    w, penalty = w / w.sum(), penalty / w.sum()

    def loss(parameters: FloatArray) -> tuple[float, FloatArray]:
        """Mean loss with the penalty, and its gradient [K + 1]; the intercept comes last."""
        coefficients = parameters[:-1]
        logits = x @ coefficients + parameters[-1]
        error = w * (special.expit(logits) - y)
        value = w @ (np.logaddexp(0, logits) - y * logits)
        gradient = np.append(error @ x + penalty * coefficients, error.sum())
        return float(value + penalty / 2 * coefficients @ coefficients), gradient

    options = {"maxiter": 1000, "maxls": 50, "gtol": 1e-4, "ftol": 1e-14}
    start = np.zeros(x.shape[1] + 1)
    result = optimize.minimize(
        loss, start, jac=True, method="L-BFGS-B", options=options
    ).x
    return result[:-1], float(result[-1])
