"""Fit a logistic regression on a few features by L-BFGS."""

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


def logistic_regression(
    features: npt.ArrayLike,
    relevant: npt.ArrayLike,
    weights: npt.ArrayLike = 1,
    penalty: float = 0,
) -> tuple[FloatArray, float]:
    """Return (coefficients [K], intercept) that minimise the log-loss.

    Args:
        features: features of N rows [N, K].
        relevant: truth value of each row [N]. True and false must both occur.
        weights: weight of each row [N], or one weight for all rows.
        penalty: strength of the L2 penalty. Half the squared length of the
            coefficients, multiplied by it, is added to the weighted sum of the losses.
            The intercept is not penalised.
    """
    from scipy import optimize, special

    x = np.asarray(features, dtype=np.float64)
    y = np.asarray(relevant, dtype=np.float64)
    w = np.broadcast_to(np.asarray(weights, dtype=np.float64), y.shape)
    total = w.sum()
    w = w / total
    penalty = penalty / total

    def loss(parameters: FloatArray) -> tuple[float, FloatArray]:
        """Return (mean loss with penalty, its gradient [K + 1], the intercept last)."""
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
    )
    return result.x[:-1], float(result.x[-1])
