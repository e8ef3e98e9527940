"""LambdaMART: boosted regression trees over hand-made features.

Christopher J. C. Burges: *From RankNet to LambdaRank to LambdaMART: An Overview*, 2010; the
features are those of the baseline of Rao et al. (2019), section 4.2: query likelihood and four
overlaps (``text``), the link (``text_url``), hashtags (``text_hashtag``), and all of them.

The paper leaves open: LightGBM grows the trees, and both grades of relevance count alike. Five
parts of the training topics choose the number of trees; see :mod:`rerankers.trees.fit`. On
held-out training topics four leaves did better than eight or sixteen; leaves of 400 pairs, or 100
ranks in the gradients' NDCG, changed AP by less than .007. As scores of two topics do not compare,
query likelihood comes with its min–max value and its reciprocal rank in the topic's list.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from rerankers.trees.boosting import BoostingConfig, Trees

TEXT = "first_stage,overlap"


@dataclass(frozen=True)
class Config(BoostingConfig):
    """Hyperparameters."""

    families: str = f"{TEXT},links,hashtags"  # Names of files in rerankers/features


class Model(Trees):
    """A list of trees over a pair's features."""

    reads = "posts"
    configurations: ClassVar[Mapping[str, Config]] = {
        "all": Config(),
        "text": Config(families=TEXT),
        "text_url": Config(families=f"{TEXT},links"),
        "text_hashtag": Config(families=f"{TEXT},hashtags"),
    }
