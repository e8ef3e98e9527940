"""Names and defaults that options, rankers and reports share.

Importing this module loads no other.
"""

METHODS = ("ql", "bm25", "rm3", "axiom")
DEFAULT_METHOD = "ql"
DEFAULT_HITS = 1000
DEFAULT_FUSION = "fusion"

DEFAULT_WINDOW = "window"
"""Model of given candidates, and of a named first stage."""

DEFAULT_RERANKER = "mp_hcnn"
"""Model of a search with λ, and of answers to questions. It scores each post alone."""

AUTO = "auto"
"""Best model trained on the user's collection, by held-out topics, or the default."""

NONE = "none"
"""The first stage alone."""

UNTUNED_WEIGHT = 0.5
DEFAULT_MEASURES = ("AP", "P@30")
