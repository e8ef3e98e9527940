"""One query's way from candidates to a run; the file to read first.

::

    candidates = retriever.search(topics, hits=1000)
    scores     = reranker.score(candidates)
    run        = interpolate(candidates, scores, weight=0.5)
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat
from pathlib import Path
from typing import TYPE_CHECKING

from indexes.posts import Post
from pipeline.collections.trec import Run, Topic, best_of, ranked
from pipeline.command.errors import DataError
from pipeline.interpolation import interpolate as mix

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from indexes.lucene import LuceneIndex
    from indexes.methods import Method
    from pipeline.collections.named import Collection
    from rerankers.base import Pairs
    from rerankers.checkpoint import TrainedReranker
    from rerankers.text.vocabulary import Idf

Progress = Callable[[int], None]


def _silent(done: int) -> None:
    """Report nothing."""


@dataclass(frozen=True)
class Candidates:
    """What a first stage found.

    Attributes:
        topics: the topics that were asked for, those without a result included.
        run: first-stage score of each candidate.
        posts: doc_id -> post, for every candidate.
        priors: query_id -> doc_id -> what the runs to rerank think of a candidate, 0 where
            nothing is said; None takes the ranks of ``run``.
        signals: name -> query_id -> doc_id -> score that a ranker of this name gives, for the
            features ``signal:NAME``; it need not know every candidate.
    """

    topics: Sequence[Topic]
    run: Run
    posts: Mapping[str, Post]
    priors: Run | None = None
    signals: Mapping[str, Run] = field(default_factory=dict)

    def keys(self) -> list[tuple[str, str]]:
        """(query_id, doc_id) of every candidate, in the order of :meth:`pairs`."""
        return [
            (topic.query_id, doc_id)
            for topic in self.topics
            for doc_id in self.run.get(topic.query_id, {})
        ]

    def pairs(self) -> "Pairs":
        """The same as texts, for a reranker."""
        import numpy as np

        from rerankers.base import FIRST_STAGE, PRIOR, Pairs

        query_rows = {topic.query_id: row for row, topic in enumerate(self.topics)}
        post_rows = {doc_id: row for row, doc_id in enumerate(self.posts)}
        keys = self.keys()
        priors = priors_of([self.run]) if self.priors is None else self.priors
        return Pairs(
            [topic.text for topic in self.topics],
            [post.text for post in self.posts.values()],
            [post.url for post in self.posts.values()],
            np.array([query_rows[query_id] for query_id, _ in keys], dtype=np.int64),
            np.array([post_rows[doc_id] for _, doc_id in keys], dtype=np.int64),
            {
                **{name: self._scores(of, np.nan) for name, of in self.signals.items()},
                FIRST_STAGE: self._scores(self.run, np.nan),
                PRIOR: self._scores(priors, 0.0),
            },
            list(self.posts),
        )

    def run_of(self, scores: "npt.NDArray[np.float32]") -> Run:
        """Scores [P], in the order of :meth:`pairs`, as a run; those that are NaN are left out."""
        run: Run = {}
        left = iter(scores.tolist())  # Each topic takes as many as it has candidates.
        for topic in self.topics:
            doc_ids = self.run.get(topic.query_id, {})
            found = {d: s for d, s in zip(doc_ids, left, strict=False) if s == s}
            if found:
                run[topic.query_id] = found
        return run

    def _scores(self, of: Run, unknown: float) -> "npt.NDArray[np.float32]":
        """[P] the scores of some run, in the order of :meth:`pairs`."""
        import numpy as np

        if not of:
            count = sum(len(self.run.get(topic.query_id, {})) for topic in self.topics)
            return np.full(count, unknown, dtype=np.float32)
        found = (
            map(of.get(topic.query_id, {}).get, self.run.get(topic.query_id, {}), repeat(unknown))
            for topic in self.topics
        )
        return np.fromiter(chain.from_iterable(found), dtype=np.float32)


def priors_of(runs: Sequence[Run]) -> Run:
    """The mean over ``runs`` of 1 / ln(rank + 1), ranks counted from 1, as trec_eval ranks.

    A post that a run does not have is worth 0 there (Severyn & Moschitti 2015, section 5).
    """
    import numpy as np

    from rerankers.base import prior_of_rank

    priors: Run = {}
    for run in runs:
        for query_id, scores in run.items():
            of_topic = priors.setdefault(query_id, {})
            doc_ids = [doc_id for doc_id, _ in ranked(scores)]
            values = prior_of_rank(np.arange(1, len(doc_ids) + 1)) / len(runs)
            for doc_id, value in zip(doc_ids, values.tolist(), strict=True):
                of_topic[doc_id] = of_topic.get(doc_id, 0.0) + value
    return priors


@dataclass(frozen=True)
class LuceneRetriever:
    """Finds candidates in an index."""

    index: "LuceneIndex"
    method: "Method"

    def search(self, topics: Sequence[Topic], hits: int = 1000) -> Candidates:
        """The best ``hits`` posts of each topic, none of them later than the topic."""
        run = self.index.search(topics, self.method, hits=hits)
        return Candidates(topics, run, self.index.posts.get_many(_doc_ids(run)))


@dataclass(frozen=True)
class RunRetriever:
    """Takes candidates from a run that somebody made.

    Args:
        run: the run.
        find_posts: doc_ids -> the posts that are known of them.
        source: where the run is from, for messages.
    """

    run: Run
    find_posts: Callable[[Sequence[str]], Mapping[str, Post]]
    source: str

    def search(self, topics: Sequence[Topic], hits: int = 1000) -> Candidates:
        """The first ``hits`` posts of each topic in the run.

        Raises:
            DataError: the run has posts that the collection has not, or none of the topics.
        """
        wanted = [topic.query_id for topic in topics if topic.query_id in self.run]
        if not wanted:
            raise DataError(
                f"{self.source}: found results for {_some(list(self.run))}, expected some for "
                f"the topics {_some([topic.query_id for topic in topics])}"
            )
        run = best_of({query_id: self.run[query_id] for query_id in wanted}, hits)
        doc_ids = _doc_ids(run)
        posts = self.find_posts(doc_ids)
        if unknown := [doc_id for doc_id in doc_ids if doc_id not in posts]:
            raise DataError(
                f"{self.source}: {len(unknown)} of its {len(doc_ids)} posts are not in the "
                f"collection ({_some(unknown)}); name the collection that the run was made on"
            )
        return Candidates(topics, run, posts)


def posts_of(collection: "Collection") -> Callable[[Sequence[str]], Mapping[str, Post]]:
    """A look-up in a collection's posts: doc_ids -> those posts that are there."""
    posts = {post.doc_id: post for post in collection.posts()}

    def look_up(doc_ids: Sequence[str]) -> Mapping[str, Post]:
        return {doc_id: posts[doc_id] for doc_id in doc_ids if doc_id in posts}

    return look_up


@dataclass(frozen=True)
class NeuralReranker:
    """Gives every candidate a new score by a trained model."""

    checkpoint: "TrainedReranker"

    @classmethod
    def load(
        cls, directory: Path, name: str | None = None, device: str = "cpu",
        idf: "Idf | None" = None,
    ) -> "NeuralReranker":  # fmt: skip
        """Read a checkpoint folder; see :func:`rerankers.checkpoint.load`."""
        from rerankers import checkpoint

        return cls(checkpoint.load(directory, name, device, idf))

    def score(
        self, candidates: Candidates, batch_size: int | None = None, progress: Progress = _silent,
        precision: str = "fp32",
    ) -> Run:  # fmt: skip
        """Neural score of each candidate, higher is better; see :func:`rerankers.engine.scoring.score`."""
        from rerankers.engine.scoring import BATCH_SIZE

        scores = self.checkpoint.score(
            candidates.pairs(), batch_size or BATCH_SIZE, progress, precision
        )
        return candidates.run_of(scores)


def interpolate(
    candidates: Candidates, scores: Run, weight: float, normalization: str = "minmax"
) -> Run:
    """``weight`` · neural + (1 − ``weight``) · first stage (Rao et al. 2019, equation 2)."""
    return mix(candidates.run, scores, weight, normalization)


def _doc_ids(run: Run) -> list[str]:
    """Every post of a run once."""
    return list(dict.fromkeys(doc_id for scores in run.values() for doc_id in scores))


def _some(names: Sequence[str], most: int = 3) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if names[most:] else "")
