"""Word counts: how many words of the question an answer has, the baselines of answer selection.

Lei Yu, Karl Moritz Hermann, Phil Blunsom and Stephen Pulman: *Deep Learning for Answer Sentence
Selection*, 2014, section 4.3, after Wen-tau Yih, Ming-Wei Chang, Christopher Meek and Andrzej
Pastusiak: *Question Answering Using Enhanced Lexical Semantic Models*, ACL 2013.

The score is the number of distinct common words without stop words (configuration ``count``), or
the sum of their IDF (``weighted``). Nothing is trained. IDF is the checkpoint's.
"""

from dataclasses import dataclass

from torch import Tensor, nn

from tweetrerank.rerankers.networks.base import (
    WORDS,
    Inputs,
    Interactions,
    Reranker,
    Terms,
)
from tweetrerank.rerankers.networks.layers import WordOverlap
from tweetrerank.rerankers.networks.training.training_settings import Settings
from tweetrerank.rerankers.settings import named
from tweetrerank.rerankers.text.vocabulary import Vocabulary


@dataclass(frozen=True)
class Config:
    """Choice of the count."""

    weighted: bool = False  # Sum of the common words' IDF instead of their number


class Model(Reranker):
    """A count of common words; see the module's docstring."""

    configurations = named(count=Config(), weighted=Config(weighted=True))
    training_settings = Settings(epochs=0)
    interactions_are_fixed = True

    def __init__(self, config: Config, vocabulary: Vocabulary) -> None:
        super().__init__(config)
        self.overlap = WordOverlap(vocabulary)
        self.score = nn.Identity()  # The count

    def encode(self, inputs: Inputs, side: str) -> Terms:
        """The words of B texts."""
        return inputs[WORDS]

    def interact(
        self, queries: Terms, posts: Terms, query_of_post: Tensor
    ) -> Interactions:
        """The count of each pair: [P, 1, 1]."""
        counts = self.overlap(queries, posts.ids, query_of_post)
        return {"count": counts[:, 2 + self.config.weighted].view(-1, 1, 1)}
