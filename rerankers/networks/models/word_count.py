"""Word counts: common words of question and answer, a baseline of answer selection.

Lei Yu, Karl Moritz Hermann, Phil Blunsom and Stephen Pulman: *Deep Learning for Answer
Sentence Selection*, 2014, section 4.3, after Wen-tau Yih, Ming-Wei Chang, Christopher
Meek and Andrzej Pastusiak: *Question Answering Using Enhanced Lexical Semantic Models*,
ACL 2013.

The score is the number of distinct common words without stop words (configuration
``count``), or the sum of their IDF (``weighted``). Nothing is trained. The IDF is that
of the checkpoint.
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
from tweetrerank.rerankers.networks.layers.common_words import WordOverlap
from tweetrerank.rerankers.networks.training.training_settings import Settings
from tweetrerank.rerankers.settings import named
from tweetrerank.rerankers.text.vocabulary import Vocabulary

CONTENT_COUNT = 2  # Column of the overlap: common words without stop words
CONTENT_IDF = 3  # The sum of their IDF


@dataclass(frozen=True)
class Config:
    """Which count is the score."""

    weighted: bool = False  # Sum of the common words' IDF instead of their number


class Model(Reranker):
    """A count of common words; see the module's docstring."""

    configurations = named(
        count=Config(),
        weighted=Config(weighted=True),
    )
    training_settings = Settings(epochs=0)
    interactions_are_fixed = True

    def __init__(self, config: Config, vocabulary: Vocabulary) -> None:
        super().__init__(config)
        self.overlap = WordOverlap(vocabulary)
        self.score = nn.Identity()  # The count

    def encode(self, inputs: Inputs, side: str) -> Terms:
        """Return the words of B texts."""
        return inputs[WORDS]

    def interact(
        self,
        queries: Terms,
        posts: Terms,
        query_of_post: Tensor,
    ) -> Interactions:
        """Return the count of each pair, [P, 1, 1]."""
        column = CONTENT_IDF if self.config.weighted else CONTENT_COUNT
        counts = self.overlap(queries, posts.ids, query_of_post)  # [P, 4]
        return {"count": counts[:, column].view(-1, 1, 1)}
