"""Learned fusion: the candidates of several rankers, ranked by a model over all their scores.

What one ranker misses another may find. :mod:`pipeline.training.fusion` makes its training sets.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from indexes.methods import METHODS
from indexes.posts import Post
from pipeline.collections.trec import Run, best_of, read_run
from pipeline.defaults import DEFAULT_HITS
from pipeline.errors import DataError, UsageError
from pipeline.ranking.interpolation import normalize
from pipeline.ranking.ranker import (
    ModelScorer,
    Progress,
    ProgressBar,
    Ranker,
    Ranking,
    Stopwatch,
    Topics,
    hidden,
    require_positive,
    silent,
    topics_of,
)
from pipeline.ranking.retrievers import Candidates, doc_ids_of, searched, with_space

if TYPE_CHECKING:
    from indexes.methods import SearchIndex
    from pipeline.collections.collection import Collection
    from pipeline.collections.topics import Topic
    from pipeline.ranking.retrievers import Retriever

OFFICIAL = "run_"  # Prefix of rankers that are a collection's official runs


@dataclass(frozen=True)
class Rankers:
    """The rankers whose scores a fusion reads."""

    names: Sequence[str]
    """Methods of search, and official runs with :data:`OFFICIAL` before their names."""
    candidate_rankers: Sequence[str]  # Those of ``names`` whose best posts are the candidates
    depth: int = DEFAULT_HITS  # Best posts of each of these that are candidates

    @classmethod
    def from_config(cls, config: Any) -> Rankers:
        """The rankers of a fusion's configuration: its families ``signal:NAME``."""
        families = config.families.split(",")
        names = [name.partition(":")[2] for name in families if name.startswith("signal:")]
        chosen = config.candidate_rankers.split(",") if config.candidate_rankers else names
        problems = [
            f"signal:{name}: found no ranker of this name, expected one of "
            f"{', '.join([*METHODS, OFFICIAL + 'ql', OFFICIAL + 'rm3'])}"
            for name in names
            if name not in METHODS and not name.startswith(OFFICIAL)
        ]
        problems += [
            f"candidate_rankers: found {name}, expected one of {', '.join(names)}: methods of "
            "search and runs whose scores are a signal"
            for name in chosen
            if name not in names
        ]
        if not chosen:
            problems.append(
                "families: found no signal of a method of search or of a run, expected one at "
                "least: these find the candidates"
            )
        if problems:
            raise UsageError(problems)
        return cls(names, chosen, config.depth)


@dataclass(frozen=True)
class UnionRetriever:
    """Finds the best candidates of several rankers, with every ranker's score.

    A post of an official run whose text is not here is a candidate too, with an empty text: its
    ranks alone speak for it.
    """

    collection: Collection
    rankers: Rankers

    @property
    def name(self) -> str:
        """Origin of the candidates' first score, for reports."""
        return "mean of min-max scores"

    @cached_property
    def index(self) -> SearchIndex:
        """The collection's index, opened once."""
        return self.collection.open_index()

    def search(
        self,
        topics: Sequence[Topic],
        hits: int = DEFAULT_HITS,
        watch: Stopwatch | None = None,
    ) -> Candidates:
        """The best posts of each candidate ranker for each topic, as many as are to be scored.

        Of a ranker's best ``hits`` the others are the ``rest``. The score of a candidate is the
        mean over all rankers of its min-max score, 0 where a ranker does not have it (CombSUM of
        Fox & Shaw 1994).

        Raises:
            UsageError: there is no index.
            DataError: an official run is malformed, or there is no candidate ranker.
        """
        watch, rankers = watch or Stopwatch(), self.rankers
        signals = self._signals(topics, hits, watch)
        if not any(name in signals for name in rankers.candidate_rankers):
            raise DataError(
                f"{self.collection.name}: found no run of {', '.join(rankers.candidate_rankers)}, "
                "whose posts this fusion ranks; use a collection that has it, or another fusion"
            )
        of_candidates = [run for name, run in signals.items() if name in rankers.candidate_rankers]
        best = _joined_runs([best_of(run, min(hits, rankers.depth)) for run in of_candidates])
        scores = mean_of_normalized(list(signals.values()))
        run = restricted(scores, best)
        rest = _without(restricted(scores, _joined_runs(of_candidates)), best)
        doc_ids = doc_ids_of(run)
        known = self.index.posts.get_many(doc_ids)
        posts = {doc_id: known.get(doc_id) or Post(doc_id, "") for doc_id in doc_ids}
        found = self._candidates(topics, run, posts, signals, rest)
        watch.stop(self.name)
        return found

    def read(self, candidates: Candidates, watch: Stopwatch | None = None) -> Candidates:
        """Given candidates with every ranker's score of them.

        The first-stage score becomes that of :meth:`search`; 0 where no ranker has the post.
        """
        watch = watch or Stopwatch()
        signals = self._signals(candidates.topics, DEFAULT_HITS, watch)
        scores = mean_of_normalized(list(signals.values()))
        run = {
            query_id: {d: scores.get(query_id, {}).get(d, 0.0) for d in wanted}
            for query_id, wanted in candidates.run.items()
        }
        scored = self._candidates(candidates.topics, run, candidates.posts, signals, {})
        watch.stop(self.name)
        return scored

    def _signals(self, topics: Sequence[Topic], hits: int, watch: Stopwatch) -> dict[str, Run]:
        """The runs of the rankers that the collection has."""
        collection, signals, missing = self.collection, {}, []
        # Of own collections and queries there are no official runs, which nobody misses there.
        runs = collection.runs
        if runs and not {t.query_id for t in topics} & {t.query_id for t in collection.topics}:
            runs = {}
        for name in self.rankers.names:
            if run := self._rank(name, topics, hits, runs):
                signals[name] = run
                watch.stop(name)
            elif runs or not name.startswith(OFFICIAL):
                missing.append(name)
        if missing:
            print(
                f"warning: {collection.name} has no {', '.join(missing)}; the fusion was trained "
                "with their scores and goes on without",
                file=sys.stderr,
            )
        return signals

    def _candidates(
        self,
        topics: Sequence[Topic],
        run: Run,
        posts: Mapping[str, Post],
        signals: Mapping[str, Run],
        rest: Run,
    ) -> Candidates:
        """Candidates with the signals of this retriever's rankers, and with adapted vectors."""
        signals = {name: restricted(scores, run) for name, scores in signals.items()}
        found = Candidates(topics, run, posts, {}, signals, rest=rest)
        return with_space(found, self.collection)

    def _rank(self, name: str, topics: Sequence[Topic], hits: int, runs: Mapping[str, Path]) -> Run:
        """One ranker's run; empty if the collection does not have it."""
        if not name.startswith(OFFICIAL):
            if name not in self.collection.methods:
                return {}
            skips = self.collection.skips_own_id
            return searched(self.index, topics, METHODS[name](), hits, skips)
        path = runs.get(name.removeprefix(OFFICIAL))
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
            for doc_id, score in normalize(scores).items():
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
class Fusion(Ranker):
    """A trained fusion."""

    retriever: UnionRetriever  # Finds the candidates, with the scores of several rankers
    scorer: ModelScorer  # The model over these scores and further features
    first_stage: Retriever | None = None
    """Gives the candidates in place of the rankers, which then only score them."""

    @classmethod
    def load(cls, collection: Collection, scorer: ModelScorer) -> Fusion:
        """The fusion for a collection, from its trained model."""
        if collection.given_candidates is not None:
            raise UsageError(
                f"`reranker`: found {scorer.name}, but {collection.name} is not searched, its "
                "candidates are given; use another model"
            )
        rankers = Rankers.from_config(scorer.checkpoint.config)
        return cls(UnionRetriever(collection, rankers), scorer)

    @property
    def name(self) -> str:
        """The model's name."""
        return self.scorer.name

    @property
    def weight(self) -> None:
        """None: it has no λ."""

    @property
    def description(self) -> str:
        """The model's weights."""
        return f"{self.name}, weights {'/'.join(self.scorer.checkpoint.directory.parts[-2:])}"

    @property
    def first_stage_name(self) -> str:
        """Name of the stage before the model's."""
        return self.retriever.name

    @property
    def collection(self) -> Collection:
        """What is searched."""
        return self.retriever.collection

    def rank(
        self, topics: Topics = None, hits: int = DEFAULT_HITS, progress: ProgressBar = hidden
    ) -> Ranking:
        """Rank the best posts of several rankers; see :class:`pipeline.ranking.ranker.Ranker`.

        Posts that are not scored follow below, in the order of their first score.
        """
        topics, hits = topics_of(self.collection, topics), require_positive("hits", hits)
        if self.first_stage:
            return self.rerank(self.first_stage.search(topics, hits), progress)
        self.retriever.index  # noqa: B018  Opened before the time counts.
        watch = Stopwatch()
        return self._ranked(self.retriever.search(topics, hits, watch), hits, progress, watch)

    def rerank(self, candidates: Candidates, progress: ProgressBar = hidden) -> Ranking:
        """Rank given candidates by what all rankers say of them."""
        name = self.first_stage.name if self.first_stage else "first stage"
        given, watch = {name: candidates.run}, Stopwatch()
        candidates = self.retriever.read(candidates, watch)
        hits = max(map(len, candidates.run.values()), default=1)
        ranking = self._ranked(candidates, hits, progress, watch)
        return ranking._replace(stages={**given, **ranking.stages})

    def _ranked(
        self, candidates: Candidates, hits: int, progress: ProgressBar, watch: Stopwatch
    ) -> Ranking:
        """The stages of candidates that have all signals."""
        with progress(len(candidates)) as report:
            run = best_of(self.score(candidates, report), hits)
        watch.stop(self.name)
        stages = {
            **candidates.signals,
            self.retriever.name: best_of(candidates.run, hits),
            self.name: run,
        }
        return Ranking(stages, candidates, watch.seconds, self.collection)

    def score(self, candidates: Candidates, progress: Progress = silent) -> Run:
        """The score of each candidate with signals, higher is better; the rest follow below."""
        run = self.scorer.score(candidates, progress)
        for query_id, rest in candidates.rest.items():
            scores = run.setdefault(query_id, {})
            lowest = min(scores.values(), default=0.0) - 1.0  # The rest's scores are in [0, 1].
            scores.update({doc_id: lowest - 1.0 + score for doc_id, score in rest.items()})
        return run
