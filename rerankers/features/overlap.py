"""Words common to query and post: Severyn & Moschitti (2015), section 4.1.

Rao et al. (2019), section 4.2, have two such features over all words and two without stop words.
As in :class:`~rerankers.networks.layers.overlap.WordOverlap` they are counts and sums over
distinct words.
"""

import numpy as np
import numpy.typing as npt

from rerankers.features._candidates import CandidateList

NAMES = ("words", "idf", "content_words", "content_idf")
"""
``words``: |q ∩ d|, number of distinct words in both texts.
``idf``: sum of their IDF, each in [0, 1].
``content_words``, ``content_idf``: the same without stop words.
"""

SIGNALS: tuple[str, ...] = ()


def compute(candidates: CandidateList) -> npt.NDArray[np.float32]:
    """[N, 4]."""
    query = candidates.query_columns
    idf, content = query.idf, ~query.is_stop_word  # [Lq]
    weights = np.stack([np.ones_like(idf), idf, content, content * idf], axis=1)  # [Lq, 4]
    common = candidates.contains(candidates.posts.column("words"))
    # No matrix product: its rounding may depend on the number of candidates, and trees see it.
    return (common[:, :, None] * weights).sum(axis=1).astype(np.float32)
