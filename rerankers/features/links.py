"""What a post's link says: the URL features of Rao et al. (2019), section 4.2."""

import numpy as np
import numpy.typing as npt

from rerankers.candidates import CandidateList
from rerankers.text import URL_PLACEHOLDER, url_text

NAMES = ("has_url", "query_words")
"""
``has_url``: 1 if the expanded URL of the post is known, else 0.
``query_words``: fraction of the query's distinct words that are part of the URL's host or path
(a substring: ``cut`` is in ``bbc.co.uk/service-cuts``), in [0, 1].
"""

SIGNALS: tuple[str, ...] = ()


def compute(candidates: CandidateList) -> npt.NDArray[np.float32]:
    """[N, 2]."""
    read = {url: url_text(url) for url in set(candidates.urls)}
    # In the text that stands for no URL, the word "url" must not be found.
    places = ["" if read[url] == URL_PLACEHOLDER else read[url] for url in candidates.urls]
    has_url = np.array([bool(place) for place in places], dtype=bool)
    shares = candidates.shares(candidates.found_in(places))
    return np.stack([has_url, shares], axis=1).astype(np.float32)
