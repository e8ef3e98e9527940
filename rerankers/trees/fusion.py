"""Learned fusion: boosted trees over the scores of several rankers and text features.

Scores of runs are features of a learned ranker, as in the baseline of Rao et al.
(2019), section 4.2, whose LambdaMART (Burges 2010) reads one run; see
:mod:`tweetrerank.rerankers.trees.lambdamart`. Each ranker's scores are normalised in
several ways, and the trees choose among them. Features of a ranker without scores are
NaN, which every split sends to one of its sides.

There is a list of trees for each of three objectives, and the score is the mean over
the lists: LambdaMART with about equal weights of all topics, LambdaMART with weights
that grow with the number of relevant posts, and the log-loss of single pairs. Their
mistakes differ, and their scores spread alike (standard deviations 1.8, 2.1 and 2.0
over candidates), so the mean needs no weights. With few topics, trees generalise
because each is grown with a third of the features and 70 % of the pairs. The number of
trees is fixed.

Configurations differ in the features that they read. ``general`` and ``adapted`` are
for collections of any kind: lexical rankers of an index, texts, and meaning by general
word vectors, or also by vectors adapted to the collection's posts
(:mod:`tweetrerank.pipeline.adapt`). ``microblog`` and ``microblog_adapted`` are for
TREC Microblog: they also read the official runs and the tweets' times.
"""

from dataclasses import dataclass

from tweetrerank.rerankers.settings import at_least, named
from tweetrerank.rerankers.text.spaces import ADAPTED, GENERAL
from tweetrerank.rerankers.trees.boosting import BoostingConfig, Trees

SEARCHES = ("ql", "bm25", "rm3", "axiom")
"""Methods of search whose scores the fusions read."""

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
"""Families that fusions read. ``signal`` covers ``prior``, as it reads the same runs.
"""


def fused(*more: str) -> str:
    """The families of a fusion for collections of any kind, then ``more``."""
    searches = [f"signal:{name}" for name in SEARCHES]
    return ",".join([*searches, *TEXT_FAMILIES, *more])


MICROBLOG = ("signal:run_ql", "signal:run_rm3", "temporal")
"""Families of TREC Microblog's official runs, and of tweets."""

TRUST = 0.3
"""The setting ``trust`` for collections of any kind, chosen by leaving collections out.

See :mod:`tweetrerank.rerankers.trees.window`. TREC Microblog needs none: the other
years teach enough.
"""


@dataclass(frozen=True)
class Config(BoostingConfig):
    """Hyperparameters."""

    families: str = fused()  # Names of feature families
    candidate_rankers: str = ""
    """Signals whose best posts are the candidates; "" is all rankers."""
    depth: int = at_least(1, 100)
    """Best posts of each ranker that are scored. Further posts follow, unscored."""


class Model(Trees):
    """Lists of trees over a pair's features."""

    reads = "searches"
    configurations = named(
        general=Config(families=fused("grams"), trust=TRUST),
        adapted=Config(families=fused("grams", ADAPTED_FAMILY), trust=TRUST),
        microblog=Config(families=fused(*MICROBLOG), depth=1000),
        microblog_adapted=Config(
            families=fused(*MICROBLOG, ADAPTED_FAMILY), depth=1000
        ),
    )
