"""Families of features that several models read, and the rankers whose scores fusions read."""

from rerankers.text.spaces import ADAPTED, GENERAL

SEARCHES = ("ql", "bm25", "rm3", "axiom")
"""Methods of search whose scores the fusions read."""

OFFICIAL_RUNS = ("run_ql", "run_rm3")
"""Official runs of TREC Microblog whose scores its fusions read."""

ADAPTED_FAMILY = f"meaning:{ADAPTED}"
"""The family that needs word vectors adapted to the collection."""

TEXT_FAMILIES = (
    *("first_stage", "overlap", "phrases", "links", "hashtags", "quality", "feedback"),
    f"meaning:{GENERAL}",
)
"""Families that fusions read; ``signal`` covers ``prior``, as it reads the same runs."""


def fused(*more: str) -> str:
    """The families of a fusion for collections of any kind, and ``more``."""
    return ",".join([*(f"signal:{name}" for name in SEARCHES), *TEXT_FAMILIES, *more])


MICROBLOG = (*(f"signal:{name}" for name in OFFICIAL_RUNS), "temporal")
"""Families that only TREC Microblog has, or only tweets."""

DEPTH, MICROBLOG_DEPTH = 100, 1000
"""Best posts of each ranker that a fusion scores."""
