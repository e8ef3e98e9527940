"""LambdaMART: boosted regression trees over hand-made features.

Christopher J. C. Burges: *From RankNet to LambdaRank to LambdaMART: An Overview*, 2010.
The features are those of the baseline of Rao et al. (2019), section 4.2: query
likelihood and four overlaps (``text``), the link (``text_url``), hashtags
(``text_hashtag``), and all of them.

The paper leaves the rest open: LightGBM grows the trees, and both grades of relevance
count alike. Five parts of the training topics choose the number of trees; see
:mod:`tweetrerank.rerankers.trees.growth`. On held-out training topics four leaves did
better than eight or sixteen. Leaves of 400 pairs, or 100 ranks in the gradients' NDCG,
changed AP by less than .007. Scores of two topics do not compare, so query likelihood
comes with its min–max value and its reciprocal rank in the topic's list.
"""

from dataclasses import replace

from tweetrerank.rerankers.settings import named
from tweetrerank.rerankers.trees.boosting import BoostingConfig, Trees

TEXT = "first_stage,overlap"  # Names of feature families

ALL = BoostingConfig(
    families=f"{TEXT},links,hashtags",
    trees=300,
    parts=5,
    leaves=4,
    penalty=1.0,
    truncation=30,
    objectives="lambdarank",
    feature_fraction=1.0,
    bagging=1.0,
)


class Model(Trees):
    """A list of trees over a pair's features."""

    reads = "posts"
    explains = ""  # Contributions do not add up to a result with λ.
    configurations = named(
        all=ALL,
        text=replace(ALL, families=TEXT),
        text_url=replace(ALL, families=f"{TEXT},links"),
        text_hashtag=replace(ALL, families=f"{TEXT},hashtags"),
    )
