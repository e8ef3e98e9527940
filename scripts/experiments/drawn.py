"""Right answers among drawn ones, and Okapi BM25 (Qiu & Huang, IJCAI 2015, section 6)."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

from pipeline.collections.collection import AnswerCollection
from pipeline.evaluation.measures import evaluate, mean
from pipeline.ranking.scorers import ModelScorer
from pipeline.training.training_set import draw_answers
from rerankers import checkpoint as checkpoints
from rerankers.text.words import words

MEASURES = ("P@1", "RR")
REPEATS = 10
"""Draws for each right answer: with a few hundred of these, one draw would decide too much."""


class Okapi:
    """BM25 (Robertson et al. 1994) over the words of ``texts``, doc_id -> text.

    As in Lucene: IDF ln(1 + (N - n + 0.5) / (n + 0.5)), without the constant factor k1 + 1. Words
    are those that the models read, with stop words and without stemming.
    """

    def __init__(self, texts: Mapping[str, str], k1: float = 1.2, b: float = 0.75) -> None:
        self.counts = {doc_id: Counter(words(text)) for doc_id, text in texts.items()}
        self.k1, self.b = k1, b

    @cached_property
    def idf(self) -> Mapping[str, float]:
        """Word -> IDF."""
        found = Counter(word for counts in self.counts.values() for word in counts)
        total = len(self.counts)
        return {word: math.log1p((total - n + 0.5) / (n + 0.5)) for word, n in found.items()}

    @cached_property
    def mean_length(self) -> float:
        """Mean number of words, 1 at least."""
        return max(1.0, mean([counts.total() for counts in self.counts.values()]))

    def scores(self, query: str, doc_ids: Sequence[str]) -> dict[str, float]:
        """doc_id -> score of the text for a query."""
        asked = Counter(words(query))
        return {doc_id: self._score(asked, self.counts[doc_id]) for doc_id in doc_ids}

    def _score(self, asked: Counter[str], counts: Counter[str]) -> float:
        norm = self.k1 * (1 - self.b + self.b * counts.total() / self.mean_length)
        return sum(
            times * self.idf[word] * counts[word] / (counts[word] + norm)
            for word, times in asked.items()
            if word in counts
        )


def measure(part: AnswerCollection, checkpoint: Path | None) -> dict[str, float]:
    """Means of :data:`MEASURES` over all draws, of a trained model or, without one, of Okapi."""
    drawn = draw_answers(part, REPEATS)
    if checkpoint is None:
        okapi = Okapi({post.doc_id: post.text for post in part.posts()})
        run = {
            topic.query_id: okapi.scores(topic.text, list(drawn.candidates.run[topic.query_id]))
            for topic in drawn.candidates.topics
        }
    else:
        run = ModelScorer(checkpoints.load(checkpoint)).score(drawn.candidates)
    found = evaluate(drawn.qrels, run, MEASURES)
    return {name: round(mean(values), 4) for name, values in found.items()}
