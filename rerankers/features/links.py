"""Words in the URL of a post: the URL features of Rao et al. (2019), section 4.2."""

import numpy as np
import numpy.typing as npt

from rerankers.features._candidates import CandidateList
from rerankers.text.ragged import Ragged

NAMES = ("has_url", "query_words")
"""
``has_url``: 1 if the expanded URL of the post is known, else 0.
``query_words``: share of the query's distinct words that are substrings of the URL's host or path
(``cut`` of ``bbc.co.uk/service-cuts``), in [0, 1].
"""

SIGNALS: tuple[str, ...] = ()


def compute(candidates: CandidateList) -> npt.NDArray[np.float32]:
    """[N, 2]."""
    links = candidates.posts.column("link")
    is_there = np.zeros((len(links), len(candidates.query_words)), dtype=np.bool_)
    for column, word in enumerate(candidates.query_words):
        is_there[_holding(links, word.encode(errors="surrogatepass")), column] = True
    return np.stack([links.lengths > 0, candidates.shares(is_there)], axis=1).astype(np.float32)


def _holding(links: Ragged, word: bytes) -> npt.NDArray[np.int64]:
    """Numbers of the links that contain a word, one for each occurrence."""
    letters = links.values
    at = np.flatnonzero(letters[: max(0, len(letters) - len(word) + 1)] == word[0])
    for offset, letter in enumerate(word):
        at = at[letters[at + offset] == letter]
    link = np.searchsorted(links.starts, at, side="right") - 1
    return link[at + len(word) <= links.starts[link + 1]]
