"""Learned fusion: a model scores the candidates of several rankers.

The model reads the scores of all rankers, so a post that one ranker misses may still be
found by another. Training sets for these models come from
:mod:`tweetrerank.pipeline.training.fusion_lists`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from tweetrerank.indexes.data_error import DataError
from tweetrerank.indexes.engines.engine_index import EngineIndex
from tweetrerank.indexes.lucene_index import LuceneIndex
from tweetrerank.indexes.methods import METHODS
from tweetrerank.indexes.posts import Post
from tweetrerank.pipeline.collections.collection import Collection
from tweetrerank.pipeline.collections.topics import Topic
from tweetrerank.pipeline.collections.trec import Run, best_of, merged, read_run
from tweetrerank.pipeline.defaults import DEFAULT_HITS
from tweetrerank.pipeline.ranking.interpolation import normalize
from tweetrerank.pipeline.ranking.ranker import (
    ProgressBar,
    Ranker,
    Ranking,
    Stopwatch,
    Topics,
    hidden,
)
from tweetrerank.pipeline.ranking.retrievers import (
    Candidates,
    IndexRetriever,
    Retriever,
    doc_ids_of,
    mean_over,
)
from tweetrerank.pipeline.text import say
from tweetrerank.pipeline.usage_error import UsageError
from tweetrerank.rerankers.model import Model

OFFICIAL = "run_"  # Prefix of rankers that stand for a collection's official runs
SIGNAL = "signal:"  # Prefix of the feature families that read the scores of a ranker


@dataclass(frozen=True)
class UnionRetriever:
    """Finds the best candidates of several rankers, and the scores of all rankers.

    A post of an official run is a candidate even if its text is missing. Such a post
    gets an empty text and is ranked by its scores alone.
    """

    collection: Collection
    rankers: Sequence[str]
    """Search methods, and official runs with the prefix :data:`OFFICIAL`."""
    sources: Sequence[str]  # The subset of ``rankers`` that contribute their best posts
    depth: int = DEFAULT_HITS  # Number of candidates that each source contributes
    name: str = "mean of min-max scores"  # Origin of the first score, for reports

    @classmethod
    def of(cls, collection: Collection, config: Any) -> Self:
        """Return a retriever for a :class:`tweetrerank.rerankers.trees.fusion.Config`.

        The rankers are the feature families named ``signal:NAME``. Raises UsageError if
        a name is unknown or if there is no ranker.
        """
        rankers = [
            family.removeprefix(SIGNAL)
            for family in config.families.split(",")
            if family.startswith(SIGNAL)
        ]
        sources = rankers
        if config.candidate_rankers:
            sources = config.candidate_rankers.split(",")
        problems = _problems(rankers, sources)
        if problems:
            raise UsageError(problems)
        return cls(collection, rankers, sources, config.depth)

    @cached_property
    def index(self) -> LuceneIndex | EngineIndex:
        """The collection's index. It is opened at the first use."""
        return self.collection.open_index()

    def search(self, topics: Sequence[Topic], hits: int = DEFAULT_HITS) -> Candidates:
        """Return the best posts of each source for each topic.

        Each source contributes :attr:`depth` candidates, at most ``hits``. The
        remaining posts among its best ``hits`` become the ``rest``. The score of a
        candidate is the mean of its min-max scores over all rankers, where a ranker
        that lacks the candidate counts as 0 (CombSUM of Fox and Shaw 1994). Raises
        DataError if the collection has none of the sources.
        """
        watch = Stopwatch()
        signals = self._signals(topics, hits, watch)
        source_runs = [run for name, run in signals.items() if name in self.sources]
        if not source_runs:
            raise DataError(
                f"{self.collection.name}: found no run of {', '.join(self.sources)}, "
                "whose posts this fusion ranks; use a collection that has it, or "
                "another fusion"
            )
        depth = min(hits, self.depth)
        best = merged(best_of(run, depth) for run in source_runs)
        scores = mean_over(list(signals.values()), normalize)
        run = _restricted(scores, best)
        rest = _without(_restricted(scores, merged(source_runs)), best)
        doc_ids = doc_ids_of(run)
        indexed = self.index.posts.get_many(doc_ids)
        posts = {doc_id: indexed.get(doc_id) or Post(doc_id, "") for doc_id in doc_ids}
        candidates = Candidates(topics, run, posts, {}, rest=rest)
        return self._with_signals(candidates, signals, watch)

    def read(self, candidates: Candidates) -> Candidates:
        """Return the given candidates with the scores of all rankers.

        Their first-stage scores are replaced by those that :meth:`search` would give. A
        candidate that no ranker has gets 0.
        """
        watch = Stopwatch()
        signals = self._signals(candidates.topics, DEFAULT_HITS, watch)
        means = mean_over(list(signals.values()), normalize)
        run: Run = {}
        for query_id, first_scores in candidates.run.items():
            scores = means.get(query_id, {})
            run[query_id] = {doc_id: scores.get(doc_id, 0.0) for doc_id in first_scores}
        scored = Candidates(candidates.topics, run, candidates.posts, {})
        return self._with_signals(scored, signals, watch)

    def _with_signals(
        self, candidates: Candidates, signals: Mapping[str, Run], watch: Stopwatch
    ) -> Candidates:
        """Return the candidates with their scores and the seconds of each search."""
        scores_of_candidates = {
            name: _restricted(scores, candidates.run)
            for name, scores in signals.items()
        }
        watch.stop(self.name)
        return replace(candidates, signals=scores_of_candidates, seconds=watch.seconds)

    def _signals(
        self, topics: Sequence[Topic], hits: int, watch: Stopwatch
    ) -> dict[str, Run]:
        """Return name -> run for the available rankers.

        A warning names the rankers that are not available.
        """
        official_runs = self._official_runs(topics)
        signals: dict[str, Run] = {}
        missing = []
        for name in self.rankers:
            run = self._run(name, topics, hits, official_runs)
            if run:
                signals[name] = run
                watch.stop(name)
            elif official_runs or not name.startswith(OFFICIAL):
                missing.append(name)
        if missing:
            say(
                f"warning: {self.collection.name} has no {', '.join(missing)}; the "
                "fusion was trained with their scores and goes on without"
            )
        return signals

    def _official_runs(self, topics: Sequence[Topic]) -> Mapping[str, Path]:
        """Return the collection's official runs if the topics are its own.

        Other topics have no official runs, so for them the result is empty and no run
        is reported as missing.
        """
        runs = self.collection.runs
        if not runs:
            return {}
        searched_ids = {topic.query_id for topic in topics}
        if searched_ids.isdisjoint(topic.query_id for topic in self.collection.topics):
            return {}
        return runs

    def _run(
        self,
        name: str,
        topics: Sequence[Topic],
        hits: int,
        official_runs: Mapping[str, Path],
    ) -> Run:
        """Return the best ``hits`` posts of one ranker for each topic.

        The run is empty if the ranker is not available.
        """
        if name in self.collection.methods:
            retriever = IndexRetriever(
                self.index, METHODS[name](), self.collection.skips_own_id
            )
            return retriever.run(topics, hits)
        if not name.startswith(OFFICIAL):
            return {}
        path = official_runs.get(name.removeprefix(OFFICIAL))
        if path is None:
            return {}
        searched_ids = {topic.query_id for topic in topics}
        official = read_run(path)
        run = {q: scores for q, scores in official.items() if q in searched_ids}
        return best_of(run, hits)


def _problems(rankers: Sequence[str], sources: Sequence[str]) -> list[str]:
    """Return the problems found in the rankers and sources of a configuration."""
    available = ", ".join([*METHODS, f"{OFFICIAL}ql", f"{OFFICIAL}rm3"])
    problems = []
    for name in rankers:
        if name not in METHODS and not name.startswith(OFFICIAL):
            problems.append(
                f"signal:{name}: found no ranker of this name, expected one of "
                f"{available}"
            )
    for name in sources:
        if name not in rankers:
            problems.append(
                f"candidate_rankers: found {name}, expected one of "
                f"{', '.join(rankers)}: methods of search and runs whose scores are a "
                "signal"
            )
    if not sources:
        problems.append(
            "families: found no signal of a method of search or of a run, expected one "
            "at least: these find the candidates"
        )
    return problems


def _restricted(run: Run, candidates: Run) -> Run:
    """Return the scores that ``run`` has for ``candidates``, in the candidates' order.

    The keys are the candidates' own string objects, which makes later look-ups fast.
    """
    restricted: Run = {}
    for query_id, doc_ids in candidates.items():
        scores = run.get(query_id, {})
        restricted[query_id] = {
            doc_id: scores[doc_id] for doc_id in doc_ids if doc_id in scores
        }
    return restricted


def _without(run: Run, excluded: Run) -> Run:
    """Return the run without the documents of the run ``excluded``."""
    remaining: Run = {}
    for query_id, scores in run.items():
        omitted = excluded.get(query_id, {})
        remaining[query_id] = {
            doc_id: score for doc_id, score in scores.items() if doc_id not in omitted
        }
    return remaining


@dataclass(frozen=True)
class Fusion(Ranker):
    """A ranker that applies a trained fusion to several rankers' scores."""

    retriever: UnionRetriever
    model: Model
    first_stage: Retriever | None = None
    """Source of the candidates. If it is given, the rankers only score its
    candidates."""

    @property
    def description(self) -> str:
        """Name of the model, and the folder of its weights."""
        return f"{self.name}, weights {'/'.join(self.model.directory.parts[-2:])}"

    def rank(
        self,
        topics: Topics = None,
        hits: int = DEFAULT_HITS,
        progress: ProgressBar = hidden,
    ) -> Ranking:
        """Rank the best posts of several rankers, as :meth:`Ranker.rank` does.

        Posts that the model does not score follow in the order of their first-stage
        scores.
        """
        if self.first_stage:
            first_ranker = Ranker(self.first_stage, None, self.collection)
            return self.rerank(first_ranker.rank(topics, hits).candidates, progress)
        self.retriever.index  # noqa: B018  It is opened before the time counts.
        return super().rank(topics, hits, progress)

    def rerank(self, candidates: Candidates, progress: ProgressBar = hidden) -> Ranking:
        """Rank the given candidates by the scores of all rankers.

        The stages of the result start with the candidates' original run.
        """
        name = self.first_stage.name if self.first_stage else "first stage"
        ranking = super().rerank(self.retriever.read(candidates), progress)
        stages = {name: candidates.run} | dict(ranking.stages)
        return ranking._replace(stages=stages)
