"""Learned fusion: the candidates of several rankers, ranked by a model over all their scores.

What one ranker misses another may find. :mod:`tweetrerank.pipeline.training.fusion_lists` makes its training sets.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
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

OFFICIAL = "run_"  # Prefix of rankers that are a collection's official runs


@dataclass(frozen=True)
class UnionRetriever:
    """Finds the best candidates of several rankers, with every ranker's score. A post of an
    official run whose text is not here is a candidate too, with an empty text: its ranks alone
    speak for it."""

    collection: Collection
    rankers: Sequence[str]
    """Methods of search, and official runs with :data:`OFFICIAL` before their names."""
    sources: Sequence[str]  # The ``rankers`` whose best posts are the candidates
    depth: int = DEFAULT_HITS  # Best posts of each of these that are candidates
    name: str = (
        "mean of min-max scores"  # Origin of the candidates' first score, for reports
    )

    @classmethod
    def of(cls, collection: Collection, config: Any) -> Self:
        """The retriever of a fusion's configuration: its families ``signal:NAME``."""
        families = config.families.split(",")
        names = [
            name.partition(":")[2] for name in families if name.startswith("signal:")
        ]
        chosen = (
            config.candidate_rankers.split(",") if config.candidate_rankers else names
        )
        known = ", ".join([*METHODS, f"{OFFICIAL}ql", f"{OFFICIAL}rm3"])
        problems = [
            f"signal:{name}: found no ranker of this name, expected one of {known}"
            for name in names
            if name not in METHODS and not name.startswith(OFFICIAL)
        ] + [
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
        return cls(collection, names, chosen, config.depth)

    @cached_property
    def index(self) -> LuceneIndex | EngineIndex:
        """The collection's index, opened once."""
        return self.collection.open_index()

    def search(self, topics: Sequence[Topic], hits: int = DEFAULT_HITS) -> Candidates:
        """The best posts of each candidate ranker for each topic, as many as are to be scored. Of a
        ranker's best ``hits`` the others are the ``rest``. The score of a candidate is the mean
        over all rankers of its min-max score, 0 where a ranker does not have it (CombSUM of Fox &
        Shaw 1994). Raises DataError if there is no candidate ranker."""
        watch = Stopwatch()
        signals = self._signals(topics, hits, watch)
        if not (
            of_candidates := [
                run for name, run in signals.items() if name in self.sources
            ]
        ):
            raise DataError(
                f"{self.collection.name}: found no run of {', '.join(self.sources)}, "
                "whose posts this fusion ranks; use a collection that has it, or another fusion"
            )
        best = merged(best_of(run, min(hits, self.depth)) for run in of_candidates)
        scores = mean_over(list(signals.values()), normalize)
        run = _restricted(scores, best)
        rest = {
            query_id: {
                d: score
                for d, score in known.items()
                if d not in best.get(query_id, {})
            }
            for query_id, known in _restricted(scores, merged(of_candidates)).items()
        }
        doc_ids = doc_ids_of(run)
        known = self.index.posts.get_many(doc_ids)
        posts = {doc_id: known.get(doc_id) or Post(doc_id, "") for doc_id in doc_ids}
        return self._found(
            Candidates(topics, run, posts, {}, rest=rest), signals, watch
        )

    def read(self, candidates: Candidates) -> Candidates:
        """Given candidates with every ranker's score of them. The first-stage score becomes that of
        :meth:`search`; 0 where no ranker has the post."""
        watch = Stopwatch()
        signals = self._signals(candidates.topics, DEFAULT_HITS, watch)
        scores = mean_over(list(signals.values()), normalize)
        run = {
            query_id: {d: scores.get(query_id, {}).get(d, 0.0) for d in wanted}
            for query_id, wanted in candidates.run.items()
        }
        return self._found(
            Candidates(candidates.topics, run, candidates.posts, {}), signals, watch
        )

    def _found(
        self, known: Candidates, signals: Mapping[str, Run], watch: Stopwatch
    ) -> Candidates:
        """Candidates with the rankers' scores of them, and the seconds of the searches."""
        signals = {
            name: _restricted(scores, known.run) for name, scores in signals.items()
        }
        watch.stop(self.name)
        return replace(known, signals=signals, seconds=watch.seconds)

    def _signals(
        self, topics: Sequence[Topic], hits: int, watch: Stopwatch
    ) -> dict[str, Run]:
        """The runs of the rankers that the collection has; a warning names the others."""
        collection, signals, missing = self.collection, dict[str, Run](), []
        wanted, runs = {topic.query_id for topic in topics}, collection.runs
        # Own topics and queries have no official runs; none is reported as missing.
        if runs and wanted.isdisjoint(topic.query_id for topic in collection.topics):
            runs = {}
        for name in self.rankers:
            run: Run = {}
            if name in collection.methods:
                retriever = IndexRetriever(
                    self.index, METHODS[name](), collection.skips_own_id
                )
                run = retriever.run(topics, hits)
            elif name.startswith(OFFICIAL) and (
                path := runs.get(name.removeprefix(OFFICIAL))
            ):
                official = read_run(path)
                run = best_of({q: official[q] for q in official if q in wanted}, hits)
            if run:
                signals[name] = run
                watch.stop(name)
            elif runs or not name.startswith(OFFICIAL):
                missing.append(name)
        if missing:
            say(
                f"warning: {collection.name} has no {', '.join(missing)}; the fusion was trained "
                "with their scores and goes on without"
            )
        return signals


def _restricted(run: Run, candidates: Run) -> Run:
    """The scores that ``run`` has of ``candidates``, in their order and with their key objects."""
    # A dictionary finds a string fastest that is the same object as its key.
    return {
        query_id: {d: scores[d] for d in wanted if d in scores}
        for query_id, wanted in candidates.items()
        for scores in [run.get(query_id, {})]
    }


@dataclass(frozen=True)
class Fusion(Ranker):
    """A trained fusion: its retriever finds the candidates, with the scores of several rankers."""

    retriever: UnionRetriever
    model: Model
    first_stage: Retriever | None = None
    """Gives the candidates in place of the rankers, which then only score them."""

    @property
    def description(self) -> str:
        """The model's weights."""
        return f"{self.name}, weights {'/'.join(self.model.directory.parts[-2:])}"

    def rank(
        self,
        topics: Topics = None,
        hits: int = DEFAULT_HITS,
        progress: ProgressBar = hidden,
    ) -> Ranking:
        """Rank the best posts of several rankers; the others follow by their first scores."""
        if self.first_stage:
            given = Ranker(self.first_stage, None, self.collection).rank(topics, hits)
            return self.rerank(given.candidates, progress)
        self.retriever.index  # noqa: B018  Opened before the time counts.
        return super().rank(topics, hits, progress)

    def rerank(self, candidates: Candidates, progress: ProgressBar = hidden) -> Ranking:
        """Rank given candidates by what all rankers say of them."""
        name = self.first_stage.name if self.first_stage else "first stage"
        ranking = super().rerank(self.retriever.read(candidates), progress)
        return ranking._replace(stages={name: candidates.run, **ranking.stages})
