"""For which other topics a post was judged, and how near these are to the query.

A post that answered a query in other words is likely to answer this one, and one that answered an
unlike query is not. Xue et al., *Optimizing Web Search Using Web Click-Through Data* (CIKM 2004),
spread clicks over similar queries; here trees decide how far they reach. Judgments of the query
itself are never among them, so features of judged topics and of new ones spread alike.
"""

import numpy as np
import numpy.typing as npt

from rerankers.features._candidates import CandidateList

NAMES = ("relevant", "relevant_cosine", "other", "other_cosine")
"""
``relevant``: number of other topics that the post was judged relevant for.
``relevant_cosine``: highest cosine of the query and one of these topics, as sums of the general
vectors of their words; NaN if there is none.
``other``, ``other_cosine``: the same for topics that it was judged, and not relevant, for.
All are NaN if no judgments are known.
"""

SIGNALS = tuple(f"judged_{name}" for name in NAMES)
"""As :class:`pipeline.ranking.judged_posts.JudgedPosts` gives them."""


def compute(candidates: CandidateList) -> npt.NDArray[np.float32]:
    """[N, 4]."""
    values = np.full((len(candidates), len(NAMES)), np.nan, dtype=np.float32)
    for column, name in enumerate(SIGNALS):
        if (signal := candidates.signals.get(name)) is not None:
            is_count = not name.endswith("cosine")
            values[:, column] = np.nan_to_num(signal) if is_count else signal
    return values
