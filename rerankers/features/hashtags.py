"""Hashtags of a post: the hashtag features of Rao et al. (2019), section 4.2."""

import numpy as np
import numpy.typing as npt

from rerankers.candidates import CandidateList, words_of_each

NAMES = ("has_hashtag", "query_words")
"""
``has_hashtag``: 1 if the post has a hashtag, else 0.
``query_words``: fraction of the query's distinct words that are words of its hashtags, in [0, 1].
``#water_shortage`` has two words, ``#watershortage`` has one.
"""

SIGNALS: tuple[str, ...] = ()


def compute(candidates: CandidateList) -> npt.NDArray[np.float32]:
    """[N, 2]."""
    found = candidates.hashtags
    has_hashtag = np.array([bool(tags) for tags in found], dtype=bool)
    read = words_of_each([" ".join(tags) for tags in found if tags])
    shares = np.zeros(len(found))
    shares[has_hashtag] = candidates.shares(candidates.found_in(read))
    return np.stack([has_hashtag, shares], axis=1).astype(np.float32)
