"""Names and defaults that options, rankers and reports share; importing it loads nothing."""

METHODS = ("ql", "bm25", "rm3", "axiom")
DEFAULT_METHOD = "ql"
DEFAULT_HITS = 1000
DEFAULT_FUSION = "fusion"
DEFAULT_WINDOW = "window"  # Where candidates are given, or a first stage is named
DEFAULT_RERANKER = "mp_hcnn"
"""Where λ is given, and for answers to questions: a score of each post by itself."""
AUTO = "auto"
"""The model trained on an own collection that is best on held-out topics, or the default."""
NONE = "none"  # The first stage alone
UNTUNED_WEIGHT = 0.5
DEFAULT_MEASURES = ("AP", "P@30")
