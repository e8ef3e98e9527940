"""Scores of lexical rankers, computed from the texts of the candidates.

BM25, and query likelihood with Dirichlet smoothing (Zhai & Lafferty 2004), over stems. Statistics
of a collection are those of the source of IDF: an index's own, or a list of word frequencies.
"""

import numpy as np
import numpy.typing as npt

from rerankers.features._candidates import CandidateList, normalised
from rerankers.features._tables import Floats

NAMES = (
    *("bm25", "bm25_minmax", "bm25_z", "bm25_log_rank"),
    *("ql", "ql_minmax", "ql_z", "ql_log_rank"),
)
"""
``bm25``: share of the highest possible BM25 score of the query, in [0, 1).
``ql``: mean over the query's stems of ln(p(stem | post) / p(stem | collection)).
``…_minmax``, ``…_z``, ``…_log_rank``: as in the family ``signal``, over the candidates; NaN in a
short list of given ones.
"""

SIGNALS: tuple[str, ...] = ()

MU = 100.0
"""Dirichlet prior: words of the collection that a post is smoothed with."""

RANGE = 16.1
"""ln N/n of a word of one post in as many as the background list counts: IDF 1."""


def compute(candidates: CandidateList) -> npt.NDArray[np.float32]:
    """[N, 8]."""
    if not len(candidates):
        return np.zeros((0, len(NAMES)), dtype=np.float32)
    columns = [
        column
        for scores in (candidates.bm25, _likelihood(candidates))
        for column in (scores, *(candidates.compared * each for each in normalised(scores)))
    ]
    return np.stack(columns, axis=1).astype(np.float32)


def _likelihood(candidates: CandidateList) -> Floats:
    """[N] mean log ratio of the query's stems in the smoothed post and in the collection."""
    frequencies, idf = candidates.stem_frequencies
    lengths = candidates.posts.column("words").lengths
    # A word of n in N posts, once in each, is this share of all their words.
    background = np.exp(-RANGE * idf) / candidates.mean_length
    ratios = np.log1p(frequencies / (MU * background)) + np.log(MU / (MU + lengths))[:, None]
    return ratios.sum(axis=1) / max(1, len(idf))
