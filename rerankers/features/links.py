"""What a post's link says: the URL features of Rao et al. (2019), section 4.2."""

import numpy as np
import numpy.typing as npt

from rerankers.candidates import CandidateList

NAMES = ("has_url", "query_words")
"""
``has_url``: 1 if the expanded URL of the post is known, else 0.
``query_words``: fraction of the query's distinct words that are part of the URL's host or path
(a substring: ``cut`` is in ``bbc.co.uk/service-cuts``), in [0, 1].
"""

SIGNALS: tuple[str, ...] = ()


def compute(candidates: CandidateList) -> npt.NDArray[np.float32]:
    """[N, 2]."""
    places = candidates.posts.links()
    found = np.zeros((len(places), len(candidates.query_words)), dtype=np.bool_)
    for column, word in enumerate(candidates.query_words):
        found[:, column] = [word in place for place in places]
    has_url = np.array([bool(place) for place in places], dtype=np.bool_)
    return np.stack([has_url, candidates.shares(found)], axis=1).astype(np.float32)
