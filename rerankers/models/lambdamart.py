"""LambdaMART: boosted regression trees over hand-made features.

Christopher J. C. Burges: *From RankNet to LambdaRank to LambdaMART: An Overview*, 2010; the
features are those of the baseline of Rao et al. (2019), section 4.2: query likelihood and four
overlaps (``text``), the link (``text_url``), hashtags (``text_hashtag``), and all of them.

Where the paper is silent: LightGBM grows the trees; a post is relevant or not, both grades alike.
The number of trees is chosen by held-out topics of the training topics, in five parts; see
:mod:`rerankers.models._boosting`. Four leaves did better on held-out
training topics than eight or sixteen; leaves of 400 pairs, or 100 ranks in the gradients' NDCG,
changed AP there by less than .007 either way. Query likelihood stands beside its
min-max and its reciprocal rank in the topic's list, since scores of two topics do not compare.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from rerankers.models._boosting import BoostedTrees, BoostingConfig

TEXT = "first_stage,overlap"


@dataclass(frozen=True)
class Config(BoostingConfig):
    """Hyperparameters."""

    families: str = f"{TEXT},links,hashtags"  # Of rerankers/features


class Model(BoostedTrees):
    """A list of trees over a pair's features; see the module's docstring."""

    config_type = Config
    configurations: ClassVar[Mapping[str, Config]] = {
        "all": Config(),
        "text": Config(families=TEXT),
        "text_url": Config(families=f"{TEXT},links"),
        "text_hashtag": Config(families=f"{TEXT},hashtags"),
    }
