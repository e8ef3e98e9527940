"""Learned fusion: the candidates of several rankers, ranked by a model over all their scores.

What one ranker misses another may find. Neural scores of training topics come from models that
have not seen these topics (stacking, Wolpert 1992), since a fusion would trust a model's memory
otherwise; those of other topics come from the model trained on all training topics, which is a
part of the fusion's checkpoint.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from indexes.methods import METHODS
from indexes.posts import Post
from pipeline.collections.trec import Qrels, Run, best_of, read_run
from pipeline.command.errors import DataError, UsageError
from pipeline.ranking.checkpoints import precomputed_for
from pipeline.ranking.interpolation import normalize
from pipeline.ranking.judged_posts import JUDGMENTS, JudgedPosts
from pipeline.ranking.ranker import Candidates, NeuralReranker, Progress, doc_ids_of, silent
from pipeline.training.training_set import JudgedCandidates, TrainingSet
from rerankers.text.spaces import ADAPTED

if TYPE_CHECKING:
    from pipeline.collections.collection import Collection
    from pipeline.collections.topics import Topic
    from rerankers.base import Pairs

HITS = 1000
"""Candidates of each ranker for a topic."""

MOST_TOPICS = 250
"""Topics of each of several training collections, at most: none outweighs the others."""

MINIMUM_COUNT = 5
"""Posts that must have a word whose vector is kept: rarer ones are in too few to matter."""

JUDGED = "judged"
"""The family of features of :mod:`rerankers.features.judged`."""

OFFICIAL = "run_"
"""Prefix of rankers that are a collection's official runs."""

UnseenScores = Callable[[str, "Pairs", Sequence[str]], npt.NDArray[np.float32]]
"""Name of a neural reranker, P pairs, query_ids of their queries -> its scores [P]."""

NeuralScores = Callable[[str, "Pairs"], npt.NDArray[np.float32]]
"""Name of a neural reranker, P pairs -> its scores [P]."""


@dataclass(frozen=True)
class Rankers:
    """The rankers whose scores a fusion reads.

    Attributes:
        lexical: methods of search, and official runs with :data:`OFFICIAL` before their names.
        neural: names of neural rerankers.
        candidate_rankers: those of ``lexical`` whose best posts are the candidates.
        depth: best posts of each of these that are candidates.
        judged: whether it also reads what judgments of other topics say of a post.
    """

    lexical: Sequence[str]
    neural: Sequence[str]
    candidate_rankers: Sequence[str]
    depth: int = HITS
    judged: bool = False

    @classmethod
    def from_config(cls, config: Any) -> Rankers:
        """The rankers of a fusion's configuration: its families ``signal:NAME``."""
        from rerankers import models

        families = config.families.split(",")
        names = [name.partition(":")[2] for name in families if name.startswith("signal:")]
        lexical = [name for name in names if name in METHODS or name.startswith(OFFICIAL)]
        neural = [name for name in names if name not in lexical]
        chosen = config.candidate_rankers.split(",") if config.candidate_rankers else lexical
        problems = [
            f"signal:{name}: found no ranker of this name, expected one of "
            f"{', '.join([*METHODS, OFFICIAL + 'ql', OFFICIAL + 'rm3', *models.names()])}"
            for name in neural
            if name not in models.names()
        ]
        problems += [
            f"candidate_rankers: found {name}, expected one of {', '.join(lexical)}: methods of "
            "search and runs whose scores are a signal"
            for name in chosen
            if name not in lexical
        ]
        if not chosen:
            problems.append(
                "families: found no signal of a method of search or of a run, expected one at "
                "least: these find the candidates"
            )
        if problems:
            raise UsageError(problems)
        return cls(lexical, neural, chosen, config.depth, JUDGED in families)


@dataclass(frozen=True)
class UnionRetriever:
    """Finds the best candidates of several rankers, with the score of every lexical ranker.

    A post of an official run whose text is not here is a candidate too, with an empty text: its
    ranks alone speak for it.
    """

    collection: Collection
    rankers: Rankers
    judged: JudgedPosts | None = None

    @property
    def name(self) -> str:
        """The rankers' names."""
        return ", ".join(self.rankers.lexical)

    def search(self, topics: Sequence[Topic], hits: int = HITS) -> Candidates:
        """The best posts of each candidate ranker for each topic, as many as are to be scored.

        Of a ranker's best ``hits`` the others are the ``rest``. The score of a candidate is the
        mean over all rankers of its min-max score, 0 where a ranker does not have it (CombSUM of
        Fox & Shaw 1994).

        Raises:
            UsageError: there is no index.
            DataError: an official run is malformed, or there is no candidate ranker.
        """
        collection, rankers = self.collection, self.rankers
        signals = {name: run for name in rankers.lexical if (run := self._rank(name, topics, hits))}
        # Own collections have no official runs, which nobody misses there.
        expected = [
            name for name in rankers.lexical if collection.runs or not name.startswith(OFFICIAL)
        ]
        if missing := [name for name in expected if name not in signals]:
            print(
                f"warning: {collection.name} has no {', '.join(missing)}; the fusion was trained "
                "with their scores and goes on without",
                file=sys.stderr,
            )
        if not any(name in signals for name in rankers.candidate_rankers):
            raise DataError(
                f"{collection.name}: found no run of {', '.join(rankers.candidate_rankers)}, whose "
                "posts this fusion ranks; use a collection that has it, or another fusion"
            )
        found = [run for name, run in signals.items() if name in rankers.candidate_rankers]
        best = mean_of_normalized([best_of(run, min(hits, rankers.depth)) for run in found])
        scores = mean_of_normalized(list(signals.values()))
        run, rest = (
            restricted(scores, best),
            _without(restricted(scores, _joined_runs(found)), best),
        )
        doc_ids = doc_ids_of(run)
        known = collection.open_index().posts.get_many(doc_ids)
        posts = {doc_id: known.get(doc_id) or Post(doc_id, "") for doc_id in doc_ids}
        signals = {name: restricted(scores, run) for name, scores in signals.items()}
        if self.judged:
            signals |= self.judged.signals(topics, run)
        space = collection.adapted_space
        return Candidates(
            topics,
            run,
            posts,
            priors={},
            signals=signals,
            spaces={t.query_id: {ADAPTED: space} for t in topics} if space else {},
            rest=rest,
        )

    def _rank(self, name: str, topics: Sequence[Topic], hits: int) -> Run:
        """One ranker's run; empty if the collection does not have it."""
        if not name.startswith(OFFICIAL):
            if name not in self.collection.methods:
                return {}
            return self.collection.open_index().search(topics, METHODS[name](), hits=hits)
        path = self.collection.runs.get(name.removeprefix(OFFICIAL))
        if path is None:
            return {}
        wanted = {topic.query_id for topic in topics}
        return best_of({q: run for q, run in read_run(path).items() if q in wanted}, hits)


def mean_of_normalized(runs: Sequence[Run]) -> Run:
    """The mean over ``runs`` of each candidate's min-max score, 0 in runs without it."""
    total: Run = {}
    for run in runs:
        for query_id, scores in run.items():
            sums = total.setdefault(query_id, {})
            for doc_id, score in normalize(scores, "minmax").items():
                sums[doc_id] = sums.get(doc_id, 0.0) + score / len(runs)
    return total


def _joined_runs(runs: Sequence[Run]) -> Run:
    """All candidates of several runs, with any of their scores."""
    found: Run = {}
    for run in runs:
        for query_id, scores in run.items():
            found.setdefault(query_id, {}).update(scores)
    return found


def _without(run: Run, others: Run) -> Run:
    """The candidates of ``run`` that ``others`` lacks."""
    return {
        query_id: {d: score for d, score in scores.items() if d not in others.get(query_id, {})}
        for query_id, scores in run.items()
    }


def restricted(run: Run, candidates: Run) -> Run:
    """The scores that ``run`` has of ``candidates``, in their order and under their very strings.

    A dictionary finds a string fastest that is the same object as its key.
    """
    return {
        query_id: {d: scores[d] for d in wanted if d in scores}
        for query_id, wanted in candidates.items()
        for scores in [run.get(query_id, {})]
    }


@dataclass(frozen=True)
class Fusion:
    """A trained fusion: a retriever and a reranker in one.

    ``reranker`` is the model over the scores of ``rankers``, among them those of the ``neural``
    rerankers, and further features; ``judged`` is what it reads of judgments.
    """

    collection: Collection
    reranker: NeuralReranker
    rankers: Rankers
    neural: Mapping[str, NeuralReranker]
    judged: JudgedPosts | None = None

    @classmethod
    def load(
        cls,
        collection: Collection,
        reranker: NeuralReranker,
        load: Callable[[str, Path], NeuralReranker],
    ) -> Fusion:
        """The fusion for a collection, from its trained model ``reranker``.

        ``load``: name of a neural reranker, its folder in the fusion's -> the reranker.
        """
        from rerankers.checkpoint import part_of

        if collection.given_candidates is not None:
            raise UsageError(
                f"--reranker {reranker.checkpoint.name}: {collection.name} is not searched, its "
                "candidates are given; use another model"
            )
        rankers = Rankers.from_config(reranker.checkpoint.model.config)
        directory = reranker.checkpoint.directory
        folders = {name: part_of(directory, name) for name in rankers.neural}
        if missing := [name for name, folder in folders.items() if not folder.is_dir()]:
            raise DataError(
                f"{directory}: found no {', '.join(missing)} in this folder, expected one folder "
                "each: the fusion reads their scores; restore it, or train the fusion again"
            )
        neural = {name: load(name, folder) for name, folder in folders.items()}
        judgments = directory / JUDGMENTS
        judged = JudgedPosts.read(judgments) if judgments.exists() else None
        return cls(collection, reranker, rankers, neural, judged)

    @property
    def name(self) -> str:
        """Origin of the candidates' first score, for reports."""
        return "mean of min-max scores"

    def search(self, topics: Sequence[Topic], hits: int = HITS) -> Candidates:
        """The best ``hits`` posts of each candidate ranker, with the scores of all rankers."""
        retriever = UnionRetriever(self.collection, self.rankers, self.judged)
        return self.read(retriever.search(topics, hits))

    def read(self, candidates: Candidates) -> Candidates:
        """Candidates with the scores of the neural rerankers besides."""
        return with_neural(
            candidates, self.neural, lambda name, part: self.neural[name].checkpoint.score(part)
        )

    def score(self, candidates: Candidates, progress: Progress = silent) -> Run:
        """The score of each candidate of :meth:`search`, higher is better.

        The rest follow below, in the order of their first score.
        """
        run = self.reranker.score(candidates, progress)
        for query_id, rest in candidates.rest.items():
            scores = run.setdefault(query_id, {})
            lowest = min(scores.values(), default=0.0) - 1.0  # The rest's scores are in [0, 1].
            scores.update({doc_id: lowest - 1.0 + score for doc_id, score in rest.items()})
        return run

    def precomputed_for(self, posts: Sequence[Post], directory: Path) -> Fusion:
        """This fusion with posts precomputed into a folder."""
        return replace(
            self,
            reranker=precomputed_for(self.reranker, posts, directory / "fusion"),
            neural={
                name: precomputed_for(reranker, posts, directory / name)
                for name, reranker in self.neural.items()
            },
        )


def with_neural(candidates: Candidates, names: Iterable[str], score: NeuralScores) -> Candidates:
    """Candidates with the scores of neural rerankers, for those whose texts are known."""
    pairs = candidates.texts()
    has_text = np.array([bool(text) for text in pairs.texts], dtype=np.bool_)
    rows = np.flatnonzero(has_text[pairs.post_index])
    part = replace(pairs, query_index=pairs.query_index[rows], post_index=pairs.post_index[rows])
    signals = dict(candidates.signals)
    for name in names:
        scores = np.full(len(pairs), np.nan, dtype=np.float32)
        scores[rows] = score(name, part)
        signals[name] = candidates.run_of(scores)
    return replace(candidates, signals=signals)


def fusion_training_set(
    rankers: Rankers,
    training_set: TrainingSet,
    collections: Sequence[Collection],
    unseen: UnseenScores,
) -> TrainingSet:
    """Candidates and scores of all rankers, for the topics of a training set.

    ``collections`` are those of the training set; ``unseen`` gives the scores by rerankers that
    have not seen these topics.
    """
    parts: list[Candidates] = []
    qrels: Qrels = {}
    for collection in collections:
        print(f"candidates of {collection.name} by {', '.join(rankers.lexical)}", file=sys.stderr)
        topics = collection.training_topics
        if len(collections) > 1:
            topics = topics[:MOST_TOPICS]
        grades = collection.training_qrels or {}
        judged = {topic.query_id: grades[topic.query_id] for topic in topics}
        of_posts = JudgedPosts(topics, judged) if rankers.judged else None
        found = UnionRetriever(collection, rankers, of_posts).search(topics)
        if judged.keys() & qrels.keys():
            found, judged = _renamed(found, judged, f"{collection.name}/")
        parts.append(found)
        qrels |= judged
    candidates = _joined(parts)
    query_ids = [topic.query_id for topic in candidates.topics]
    scored = with_neural(
        candidates, rankers.neural, lambda name, pairs: unseen(name, pairs, query_ids)
    )
    return replace(
        training_set,
        candidates=f"the best {rankers.depth} of each of {', '.join(rankers.candidate_rankers)}",
        training=JudgedCandidates(scored, qrels, training_set.training.judged_only),
        minimum_count=MINIMUM_COUNT,
    )


def _renamed(part: Candidates, qrels: Qrels, prefix: str) -> tuple[Candidates, Qrels]:
    """Candidates and judgments with a prefix before every query_id."""

    def renamed(mapping: Mapping[str, Any]) -> dict[str, Any]:
        return {f"{prefix}{query_id}": value for query_id, value in mapping.items()}

    candidates = replace(
        part,
        topics=[t._replace(query_id=f"{prefix}{t.query_id}") for t in part.topics],
        run=renamed(part.run),
        signals={name: renamed(run) for name, run in part.signals.items()},
        spaces=renamed(part.spaces),
        rest={},
        memo={},
    )
    return candidates, renamed(qrels)


def _joined(parts: Sequence[Candidates]) -> Candidates:
    """The candidates of several collections, whose topics all differ."""
    signals: dict[str, Run] = {}
    for part in parts:
        for name, run in part.signals.items():
            signals[name] = {**signals.get(name, {}), **run}
    return Candidates(
        [topic for part in parts for topic in part.topics],
        {query_id: scores for part in parts for query_id, scores in part.run.items()},
        {doc_id: post for part in parts for doc_id, post in part.posts.items()},
        {},
        signals,
        spaces={query_id: spaces for part in parts for query_id, spaces in part.spaces.items()},
    )
