"""The model ``fusion``: boosted trees that combine several rankers with text features.

The scores of several runs are features of a learned ranker. The baseline of Rao et al.
(2019), section 4.2, does the same with one run: LambdaMART (Burges 2010), see
:mod:`tweetrerank.rerankers.trees.lambdamart`. The scores of each ranker are normalised
in several ways, and the trees choose among them. If a ranker has no scores, its
features are NaN, and every split sends NaN to one of its sides.

There is a list of trees for each of three objectives: LambdaMART with about equal
weights for all topics, LambdaMART with weights that grow with the number of relevant
posts, and the log-loss of single pairs. The score is the mean over the lists. The lists
make different mistakes. Their scores spread alike (standard deviations 1.8, 2.1 and 2.0
over candidates), so the mean needs no weights.
Each tree is grown with a third of the features and 70 % of the pairs, so that the trees
generalise from few topics. The number of trees is fixed.

The configurations differ in the features that they read. ``general`` and ``adapted``
are for collections of any kind. They read the lexical rankers of an index, texts, and
meaning by general word vectors; ``adapted`` also reads meaning by vectors that were
adapted to the collection's posts (:mod:`tweetrerank.pipeline.adapt`). ``microblog`` and
``microblog_adapted`` are for TREC Microblog. They also read the official runs and the
times of tweets.
"""

from dataclasses import dataclass

from tweetrerank.rerankers.settings import at_least, named
from tweetrerank.rerankers.text.spaces import ADAPTED, GENERAL
from tweetrerank.rerankers.trees.boosting import BoostingConfig, Trees

SEARCHES = ("ql", "bm25", "rm3", "axiom")
"""Search methods that give every fusion its scores."""

ADAPTED_FAMILY = f"meaning:{ADAPTED}"  # Needs word vectors adapted to the collection

TEXT_FAMILIES = (
    "first_stage",
    "overlap",
    "phrases",
    "links",
    "hashtags",
    "quality",
    "feedback",
    f"meaning:{GENERAL}",
)
"""Families that every fusion reads besides ``signal``.

The family ``prior`` is not among them, because ``signal`` reads the same runs.
"""


def fused(*more: str) -> str:
    """Return the families of a fusion for any collection, then ``more``: a setting."""
    searches = [f"signal:{name}" for name in SEARCHES]
    return ",".join([*searches, *TEXT_FAMILIES, *more])


MICROBLOG = ("signal:run_ql", "signal:run_rm3", "temporal")
"""Further families for TREC Microblog, which read the official runs and tweets' times.
"""

TRUST = 0.3
"""The setting ``trust`` of fusions for collections of any kind.

It was chosen by leaving out one collection at a time; see
:mod:`tweetrerank.rerankers.trees.window`. The fusions for TREC Microblog do not need
it, because they learn enough from the other years.
"""


@dataclass(frozen=True)
class Config(BoostingConfig):
    """Hyperparameters."""

    families: str = fused()  # Names of feature families
    candidate_rankers: str = ""
    """Names of the rankers that find the candidates; "" stands for all rankers."""
    depth: int = at_least(1, 100)
    """Number of each ranker's best posts that are scored. The others follow these in
    the ranking without a score."""


class Model(Trees):
    """The model ``fusion``; see the module."""

    reads = "searches"
    configurations = named(
        general=Config(families=fused("grams"), trust=TRUST),
        adapted=Config(families=fused("grams", ADAPTED_FAMILY), trust=TRUST),
        microblog=Config(families=fused(*MICROBLOG), depth=1000),
        microblog_adapted=Config(
            families=fused(*MICROBLOG, ADAPTED_FAMILY), depth=1000
        ),
    )
