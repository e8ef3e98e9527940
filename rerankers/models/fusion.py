"""Learned fusion: boosted trees over the scores of several rankers and what else is known.

The scores of runs as features of a learned ranker, beside features of the text: as in the baseline
of Rao et al. (2019), section 4.2, whose LambdaMART (Burges 2010) has one run; see
:mod:`rerankers.models.lambdamart`. Each ranker's scores come by several normalisations, so the
trees choose among those that fusions take by rule. A ranker whose scores are not known has NaN in
place of its features, which every split sends to one of its sides.

Three objectives have a list of trees each, whose scores are averaged: LambdaMART where every topic
weighs about the same, where what a topic weighs grows with its relevant posts, and the log-loss of
single pairs. Their mistakes differ, and their scores happen to spread alike (standard deviations
1.8, 2.1 and 2.0 over candidates), so none needs a weight. In cross-validation by topic within the
microblog years 2011 and 2012 (AP 2011 and 2012, P@30 2011 and 2012):

==========================================  ====  ====  ====  ====
the first alone, 300 trees of weight .05    .498  .306  .528  .458
the same with three seeds, averaged         .501  .306  .529  .458
the second alone                            .493  .309  .525  .460
the third alone                             .470  .305  .531  .450
all three, 300 trees of weight .05 each     .495  .313  .531  .464
all three, 400 trees of weight .05 each     .495  .313  .534  .467
all three, 200 trees of weight .1 each      .496  .311  .536  .470
==========================================  ====  ====  ====  ====

All but the second are means of two or three seeds. The first alone was worse with 15 or 31 leaves,
600 trees, 30 ranks in the gradients' NDCG, or rank_xendcg. With so few topics, what keeps the trees
general is that each has a third of the features and 70 % of the pairs. Their number is fixed. A
second round, whose feedback is from the best posts of the first, was worse. Without ``neighbours``,
a third of the families' time, AP and P@30 were the same.

The score of SM-CNN (:mod:`rerankers.models.sm_cnn`) is among the signals, by word vectors that know
the posts and without what it would read of runs. It was worth more than that of MP-HCNN, and both
no more than it alone: by the first objective AP .497 and .306, P@30 .530 and .456 with SM-CNN; .493
and .304, .525 and .449 with MP-HCNN; .493 and .309, .533 and .457 with both. That of K-NRM, or of a
second SM-CNN, added nothing. Where rankers are few and time is short, ``families`` can do without.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from rerankers.models._boosting import BoostedTrees, BoostingConfig
from rerankers.models._feature_model import FUSED


@dataclass(frozen=True)
class Config(BoostingConfig):
    """Hyperparameters."""

    families: str = f"{FUSED},signal:sm_cnn"  # Of rerankers/features
    objectives: str = "lambdarank,lambdarank_sum,binary"  # Lists of trees, averaged
    trees: int = 200  # Of each list
    candidate_rankers: str = (
        ""  # Rankers among the signals whose best posts are ranked; none is all
    )
    parts: int = 0  # Of the training topics, to choose the number of trees by; 0 grows them all
    learning_rate: float = 0.1  # Weight of each tree
    leaves: int = 7  # Leaves of a tree
    penalty: float = 5.0  # L2 penalty of a leaf's value
    truncation: int = 100  # Ranks that count in the gradients' NDCG
    feature_fraction: float = 0.3  # Of the features, drawn anew for each tree
    bagging: float = 0.7  # Of the training pairs, drawn anew for each tree


class Model(BoostedTrees):
    """Lists of trees over a pair's features; see the module's docstring."""

    config_type = Config
    configurations: ClassVar[Mapping[str, Config]] = {"all": Config()}
