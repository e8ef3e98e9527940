"""Hashtags of a post: the hashtag features of Rao et al. (2019), section 4.2."""

import numpy as np
import numpy.typing as npt

from rerankers.features._candidates import CandidateList

NAMES = ("has_hashtag", "query_words")
"""
``has_hashtag``: 1 if the post has a hashtag, else 0.
``query_words``: share of the query's distinct words in its hashtags, in [0, 1]. ``#water_shortage``
has two words, ``#watershortage`` has one.
"""

SIGNALS: tuple[str, ...] = ()


def compute(candidates: CandidateList) -> npt.NDArray[np.float32]:
    """[N, 2]."""
    has_hashtag = candidates.posts.counted.hashtags > 0
    is_there = candidates.contains(candidates.posts.column("hashtag_words"))
    return np.stack([has_hashtag, candidates.shares(is_there)], axis=1).astype(np.float32)
