"""Normalise the numbers of N candidates to min–max scores, standard scores or ranks.

Min–max and standard scores are those of Montague & Aslam (2001), "Relevance score
normalization for metasearch".
"""

import numpy as np
import numpy.typing as npt

from tweetrerank.rerankers.features.text_tables import Floats
from tweetrerank.rerankers.text.ragged import Rows


def minmax(values: npt.NDArray[np.floating]) -> Floats:
    """Return (v − min) / (max − min) of each value v [N], in [0, 1].

    All results are 0 if all values are equal.
    """
    values = values.astype(np.float64)
    lowest = values.min(initial=np.inf)
    highest = values.max(initial=-np.inf)
    if not highest > lowest:
        return np.zeros(len(values))
    return (values - lowest) / (highest - lowest)


def z_score(values: npt.NDArray[np.floating]) -> Floats:
    """Return (v − mean) / standard deviation of each value v [N].

    The standard deviation has the divisor N. All results are 0 if all values are equal.
    """
    deviations = values - values.mean()
    deviation = np.sqrt(np.mean(deviations * deviations))
    return deviations / (deviation or np.inf)


def higher(values: npt.NDArray[np.floating]) -> Rows:
    """Return for each value the number of values that are higher [N]."""
    ascending = np.sort(values)
    return len(values) - np.searchsorted(ascending, values, side="right")


def normalised(scores: Floats) -> tuple[Floats, Floats, Floats]:
    """Return (:func:`minmax`, :func:`z_score`, ln(1 + :func:`higher`)), each [N].

    There must be at least one score.
    """
    return minmax(scores), z_score(scores), np.log1p(higher(scores))
