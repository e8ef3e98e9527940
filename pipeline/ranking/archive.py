"""Retrieval of similar questions from an archive of question–answer pairs, with a trained CNTN.

Qiu & Huang (IJCAI 2015), equation 4: a pair (q, a) of the archive answers the question t with the
score α v_tᵀ v_q + (1 − α) s(t, a), a mixture of the similarity of both questions and the model's
score of the archive's answer for the new question.

::

    archive = QuestionArchive.build(pairs, checkpoint)
    found   = archive.search(topics, hits=20)    # the nearest questions, with both parts
    run     = mix(found, alpha=0.7)              # query_id -> the archive's query_id -> score

Sentence vectors have length 1 here: the paper calls its model with M = I "just a cosine", which
v_qᵀ v_a is only for such vectors, and other lengths would outweigh s. The nearest
questions are those of the first part alone; of several answers to a question the best counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from indexes.posts import Post
from pipeline.collections.topics import Topic
from pipeline.collections.trec import Run
from pipeline.command.errors import DataError

if TYPE_CHECKING:
    from pipeline.collections.collection import AnswerCollection
    from rerankers.reranker import TrainedReranker

ALPHAS = tuple(step / 20 for step in range(21))  # 0, 0.05, …, 1: the search space of section 6.3
BATCH_SIZE = 256  # Questions per forward pass


class ArchivedPair(NamedTuple):
    """A question of the archive and one of its answers."""

    query_id: str
    question: str
    answer: Post


class Match(NamedTuple):
    """A pair of the archive, and the parts of equation 4: v_tᵀ v_q, from -1 to 1, and s(t, a)."""

    pair: ArchivedPair
    similarity: float
    score: float

    def mixed(self, alpha: float) -> float:
        """Equation 4."""
        return alpha * self.similarity + (1 - alpha) * self.score


Found = Mapping[str, Sequence[Match]]
"""query_id of a question -> the pairs of the nearest questions of the archive."""


@dataclass(frozen=True)
class QuestionArchive:
    """Question–answer pairs by query_id, and the questions' vectors."""

    pairs: Mapping[str, Sequence[ArchivedPair]]  # query_id -> pairs of one question
    vectors: npt.NDArray[np.float32]  # [N, E] of length 1, in the order of ``pairs``
    checkpoint: TrainedReranker  # Of the model that made them

    @classmethod
    def build(cls, pairs: Iterable[ArchivedPair], checkpoint: TrainedReranker) -> Self:
        """Encode the questions of ``pairs``."""
        grouped: dict[str, list[ArchivedPair]] = {}
        for pair in pairs:
            grouped.setdefault(pair.query_id, []).append(pair)
        vectors = question_vectors(checkpoint, [rows[0].question for rows in grouped.values()])
        return cls(grouped, vectors, checkpoint)

    def search(self, topics: Sequence[Topic], hits: int = 20) -> Found:
        """The nearest ``hits`` questions of the archive for each topic, with all their pairs."""
        if not topics:
            return {}
        vectors = question_vectors(self.checkpoint, [topic.text for topic in topics])
        similarities, questions = vectors @ self.vectors.T, list(self.pairs.values())
        nearest = np.argsort(-similarities, axis=1, kind="stable")[:, :hits]
        rows = [
            (place, pair, float(similarities[place, number]))
            for place, numbers in enumerate(nearest.tolist())
            for number in numbers
            for pair in questions[number]
        ]
        scores = self.checkpoint.predict(
            [(topics[place].text, (pair.answer.text, pair.answer.url)) for place, pair, _ in rows]
        )
        found: dict[str, list[Match]] = {topic.query_id: [] for topic in topics}
        for (place, pair, similarity), score in zip(rows, scores.tolist(), strict=True):
            found[topics[place].query_id].append(Match(pair, similarity, score))
        return found


def best_pairs(matches: Sequence[Match], alpha: float) -> list[Match]:
    """The best pair of each question of the archive, best first."""
    ordered = sorted(matches, key=lambda match: match.mixed(alpha), reverse=True)
    best: dict[str, Match] = {}
    for match in ordered:
        best.setdefault(match.pair.query_id, match)
    return list(best.values())


def mix(found: Found, alpha: float) -> Run:
    """query_id -> the archive's query_id -> equation 4 of its best pair."""
    return {
        query_id: {match.pair.query_id: match.mixed(alpha) for match in best_pairs(matches, alpha)}
        for query_id, matches in found.items()
    }


def archived_pairs(collection: AnswerCollection) -> list[ArchivedPair]:
    """The questions of a collection's training part, each with its relevant answers."""
    part = collection.part("train")
    judgments = part.qrels
    if judgments is None:
        raise DataError(part.missing_judgments)
    posts = {post.doc_id: post for post in part.posts()}
    pairs = [
        ArchivedPair(topic.query_id, topic.text, posts[doc_id])
        for topic in part.topics
        for doc_id, relevance in judgments.get(topic.query_id, {}).items()
        if relevance > 0 and doc_id in posts
    ]
    if not pairs:
        raise DataError(f"{collection.name}: found no question with a relevant answer")
    return pairs


def question_vectors(
    checkpoint: TrainedReranker, questions: Sequence[str]
) -> npt.NDArray[np.float32]:
    """Sentence vectors of questions, at least one, normalized to length 1: [N, E]."""
    import torch
    from torch.nn.functional import normalize

    model = checkpoint.model
    inputs = checkpoint.encoder.queries(questions, model.query_inputs, model.idf)
    # Batches of questions of similar length need little padding.
    order = np.argsort(np.sum([ids.lengths for ids in inputs.values()], axis=0), kind="stable")
    device = model.device_of()
    parts = []
    with torch.inference_mode():
        for start in range(0, len(order), BATCH_SIZE):
            rows = order[start : start + BATCH_SIZE]
            vectors = model.encode_queries(
                {name: ids.batch(rows, device) for name, ids in inputs.items()}
            )
            if not isinstance(vectors, torch.Tensor):
                raise DataError(
                    f"{checkpoint.directory}: found a checkpoint of {checkpoint.name}, which has "
                    "no sentence vectors of questions; expected one of cntn"
                )
            parts.append(normalize(vectors, dim=1).float().cpu().numpy())
    return np.concatenate(parts)[np.argsort(order)]
