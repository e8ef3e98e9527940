"""The model ``lambdamart``: boosted regression trees over hand-made features.

The algorithm is that of Christopher J. C. Burges: *From RankNet to LambdaRank to
LambdaMART: An Overview*, 2010. The features are those of the baseline of Rao et al.
(2019), section 4.2. ``text`` reads query likelihood and four overlaps. ``text_url``
adds the features of the link, ``text_hashtag`` those of hashtags, and ``all`` both.

The paper leaves the rest open. Here LightGBM grows the trees, and both grades of
relevance count as relevant. The number of trees is chosen by a cross-validation on five
parts of the training topics; see :mod:`tweetrerank.rerankers.trees.growth`. On held-out
training topics, four leaves did better than eight or sixteen. Leaves of 400 pairs, or
100 ranks in the gradients' NDCG, changed AP by less than .007. Query likelihoods of
different topics cannot be compared, so the trees also read its min–max value and its
reciprocal rank in the topic's list.
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
    """The model ``lambdamart``; see the module."""

    reads = "posts"
    # Contributions would not add up to a result that is mixed by λ.
    explains = ""
    configurations = named(
        all=ALL,
        text=replace(ALL, families=TEXT),
        text_url=replace(ALL, families=f"{TEXT},links"),
        text_hashtag=replace(ALL, families=f"{TEXT},hashtags"),
    )
