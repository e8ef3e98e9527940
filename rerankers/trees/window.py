"""The model ``window``: boosted trees that rank the candidates of any first stage.

:mod:`tweetrerank.rerankers.trees.fusion` needs the scores of several searches. This
model takes any list of candidates in one of three forms: with the scores of a first
stage, in the order of a first stage but without scores, or without an order. Most
clients of a reranking service send the second form.

The model is trained on lists of several first stages in all three forms, so that it
learns what to read where scores or order are missing. It is also trained on batches,
because scores must be comparable across batches, and on a language that no source of
words covers.

Collections of other kinds than those in the training need more trust in the first stage
than trees learn. So the score is reduced by ``trust`` times the logarithm of the post's
rank in the first stage. The factor was chosen by leaving out one collection at a time.
If the first stage is unknown, BM25 and query likelihood of the texts stand in for its
rank.
"""

from dataclasses import dataclass

from tweetrerank.rerankers.settings import at_least, named
from tweetrerank.rerankers.trees.boosting import BoostingConfig, Trees
from tweetrerank.rerankers.trees.fusion import ADAPTED_FAMILY, TEXT_FAMILIES

WINDOW_FAMILIES = ("given", "lexical", "content", "grams", *TEXT_FAMILIES[1:])
"""The families of texts.

``first_stage`` is not among them, because scores of different first stages have
different units.
"""


@dataclass(frozen=True)
class Config(BoostingConfig):
    """Hyperparameters. :mod:`tweetrerank.rerankers.trees.fusion` gives the reasons."""

    families: str = ",".join(WINDOW_FAMILIES)  # Names of feature families
    trust: float = 0.2
    """The logarithm of the first stage's rank, multiplied by this, reduces the score.
    """
    topics: int = at_least(1, 40)
    """Number of topics that are drawn from each training collection for each first
    stage."""


class Model(Trees):
    """The model ``window``; see the module."""

    reads = "lists"
    configurations = named(
        general=Config(),
        adapted=Config(f"{Config.families},{ADAPTED_FAMILY}"),
    )
