"""A fusion over the candidates of any first stage: boosted trees over texts and what is given.

Where :mod:`tweetrerank.rerankers.trees.fusion` searches by several rankers itself, this model takes a window
of candidates as it comes: with the scores of its first stage, in its order only, as most clients of
a reranking service send it, or as a set. It is trained on windows of several first stages in all
three forms, so that it knows what to read where the others are missing; in batches, whose scores
must compare, and in a language that no source of words knows. On collections of other kinds than
those of the training, trees trust the first stage too little: the score is less ``trust`` times the
logarithm of its rank, chosen by leaving collections out. BM25 and query likelihood of the texts
stand in for a first stage that is unknown.
"""

from dataclasses import dataclass

from tweetrerank.rerankers.settings import at_least, named
from tweetrerank.rerankers.trees.boosting import BoostingConfig, Trees
from tweetrerank.rerankers.trees.fusion import ADAPTED_FAMILY, TEXT_FAMILIES

WINDOW_FAMILIES = ("given", "lexical", "content", "grams", *TEXT_FAMILIES[1:])
"""All families of texts, but the unit of a first stage's score says nothing of another's."""


@dataclass(frozen=True)
class Config(BoostingConfig):
    """Hyperparameters; for the reasons see :mod:`tweetrerank.rerankers.trees.fusion`."""

    families: str = ",".join(WINDOW_FAMILIES)  # Names of files in rerankers/features
    trust: float = (
        0.2  # What the logarithm of a first stage's rank takes away from a score
    )
    topics: int = at_least(
        1, 40
    )  # Of each training collection, anew for each first stage


class Model(Trees):
    """Lists of trees over a pair's features."""

    reads = "lists"
    configurations = named(
        general=Config(), adapted=Config(f"{Config.families},{ADAPTED_FAMILY}")
    )
