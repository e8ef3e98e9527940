"""The model ``window``: boosted trees that rank the candidates of any first stage.

:mod:`tweetrerank.rerankers.trees.fusion` searches by several rankers itself. This model
takes a list of candidates as it comes: with the scores of its first stage, in its order
only, as most clients of a reranking service send it, or as a set.

It is trained on lists of several first stages in all three forms, so that it knows what
to read where the others are missing. It is also trained on batches, whose scores must
compare, and on a language that no source of words covers.

On collections of other kinds than those of the training, trees trust the first stage
too little. So the score is reduced by ``trust`` times the logarithm of the post's rank;
the factor was chosen by leaving collections out. BM25 and query likelihood of the texts
stand in for a first stage that is unknown.
"""

from dataclasses import dataclass

from tweetrerank.rerankers.settings import at_least, named
from tweetrerank.rerankers.trees.boosting import BoostingConfig, Trees
from tweetrerank.rerankers.trees.fusion import ADAPTED_FAMILY, TEXT_FAMILIES

WINDOW_FAMILIES = ("given", "lexical", "content", "grams", *TEXT_FAMILIES[1:])
"""All families of texts, without ``first_stage``: the unit of a first stage's score has
no meaning for another first stage."""


@dataclass(frozen=True)
class Config(BoostingConfig):
    """Hyperparameters; reasons are in :mod:`tweetrerank.rerankers.trees.fusion`."""

    families: str = ",".join(WINDOW_FAMILIES)  # Names of feature families
    trust: float = 0.2
    """Factor of the logarithm of the first stage's rank, which scores are reduced by.
    """
    topics: int = at_least(1, 40)
    """Topics of each training collection, drawn for each first stage."""


class Model(Trees):
    """Lists of trees over a pair's features."""

    reads = "lists"
    configurations = named(
        general=Config(),
        adapted=Config(f"{Config.families},{ADAPTED_FAMILY}"),
    )
