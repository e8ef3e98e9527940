"""Learned fusion: boosted trees over the scores of several rankers and what else is known.

The scores of runs as features of a learned ranker, beside features of the text: as in the baseline
of Rao et al. (2019), section 4.2, whose LambdaMART (Burges 2010) has one run; see
:mod:`rerankers.models.lambdamart`. Each ranker's scores come by several normalisations, so the
trees choose among those that fusions take by rule. A ranker whose scores are not known has NaN in
place of its features, which every split sends to one of its sides.

These settings did best, or no worse, in cross-validation by topic within the microblog years 2011
and 2012 (AP .486 and .297; 15 and 31 leaves .480 and .297, .480 and .295; 600 trees .469 and .297;
30 ranks .472 and .295; rank_xendcg .457 and .289). With so few topics, what keeps the trees general
is that each has a third of the features and 70 % of the pairs. Their number is fixed. A second
round, whose feedback is from the best posts of the first, was worse (.468 and .292).

The score of SM-CNN (:mod:`rerankers.models.sm_cnn`) is among the signals, by word vectors that know
the posts and without what it would read of runs. In such cross-validations, the mean of three
seeds, it was worth more than that of MP-HCNN, and both no more than it alone: AP .497 and .306,
P@30 .530 and .456 with SM-CNN; .493 and .304, .525 and .449 with MP-HCNN; .493 and .309, .533 and
.457 with both. That of K-NRM, or of a second SM-CNN, added nothing. Where rankers are few and time
is short, ``families`` can do without.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from rerankers.boosting import BoostedTrees, BoostingConfig
from rerankers.feature_models import FUSED


@dataclass(frozen=True)
class Config(BoostingConfig):
    """Hyperparameters."""

    families: str = f"{FUSED},signal:sm_cnn"  # Of rerankers/features
    finders: str = ""  # Rankers among the signals whose best posts are ranked; none is all
    parts: int = 0  # Of the training topics, to choose the number of trees by; 0 grows them all
    learning_rate: float = 0.05  # Weight of each tree
    leaves: int = 7  # Leaves of a tree
    penalty: float = 5.0  # L2 penalty of a leaf's value
    truncation: int = 100  # Ranks that count in the gradients' NDCG
    feature_fraction: float = 0.3  # Of the features, drawn anew for each tree
    bagging: float = 0.7  # Of the training pairs, drawn anew for each tree


class Model(BoostedTrees):
    """Lists of trees over a pair's features; see the module's docstring."""

    config_type = Config
    configurations: ClassVar[Mapping[str, Config]] = {"all": Config()}
