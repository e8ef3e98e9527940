"""Hashtags of a post: the hashtag features of Rao et al. (2019), section 4.2."""

import re

import numpy as np
import numpy.typing as npt

from rerankers.candidates import CandidateList, words_of_each
from rerankers.text import MAX_CHARACTERS

NAMES = ("has_hashtag", "query_words")
"""
``has_hashtag``: 1 if the post has a hashtag, else 0.
``query_words``: fraction of the query's distinct words that are words of its hashtags, in [0, 1].
``#water_shortage`` has two words, ``#watershortage`` has one.
"""

SIGNALS: tuple[str, ...] = ()

# ``#tag`` as it was written, or ``## tag`` and ``# tag`` as the published test collections have
# it. Two spaces (``##  50million``) stand for a pound sign there, and no hashtag is all digits.
_HASHTAG = re.compile(r"(?<![\w&])#{1,2} ?(\w*[^\W\d_]\w*)")


def hashtags(text: str) -> list[str]:
    """The hashtags of a post, without their sign."""
    text = text[:MAX_CHARACTERS]
    return _HASHTAG.findall(text) if "#" in text else []


def compute(candidates: CandidateList) -> npt.NDArray[np.float32]:
    """[N, 2]."""
    found = [hashtags(text) for text in candidates.texts]
    has_hashtag = np.array([bool(tags) for tags in found], dtype=bool)
    read = words_of_each([" ".join(tags) for tags in found if tags])
    shares = np.zeros(len(found))
    shares[has_hashtag] = candidates.shares(candidates.found_in(read))
    return np.stack([has_hashtag, shares], axis=1).astype(np.float32)
