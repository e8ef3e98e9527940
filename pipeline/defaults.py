"""Names and defaults that options, rankers and reports share.

This module imports no other, so that the help of a command appears quickly.
"""

METHODS = ("ql", "bm25", "rm3", "axiom")
DEFAULT_METHOD = "ql"
DEFAULT_HITS = 1000
DEFAULT_FUSION = "fusion"

DEFAULT_WINDOW = "window"
"""Model for given candidates, and for searches that name a first stage."""

DEFAULT_RERANKER = "mp_hcnn"
"""Model for searches with λ, and for answers to questions.

It scores each post by itself.
"""

AUTO = "auto"
"""The model trained on the user's collection that is best on held-out topics.

It means the default model if none was trained.
"""

NONE = "none"
"""No reranker: the ranking is that of the first stage."""

UNTUNED_WEIGHT = 0.5
DEFAULT_MEASURES = ("AP", "P@30")
