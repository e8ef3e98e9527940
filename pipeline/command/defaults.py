"""Names and defaults that options, rankers and reports share; importing it loads nothing."""

METHODS = ("ql", "bm25", "rm3", "axiom")
DEFAULT_METHOD = "ql"
DEFAULT_HITS = 1000
DEFAULT_FUSION = "fusion"
DEFAULT_RERANKER = "mp_hcnn"
"""Where no fusion fits the arguments, or candidates are given."""
AUTO = "auto"
"""The model trained on an own collection that is best on held-out topics, or the default."""
NONE = "none"
"""The first stage alone."""
UNTUNED_WEIGHT = 0.5
