"""From topics to a ranking: the file to read first.

::

    candidates = retriever.search(topics, hits=1000)
    scores     = scorer.score(candidates)
    run        = interpolate(candidates.run, scores, weight=0.5)

These three lines are :meth:`Mixture.rank`. A :class:`Ranker` is what every command, the service and
the library hold: :class:`Mixture`, or :class:`pipeline.ranking.fusion.Fusion`, whose candidates
come from several retrievers. :func:`pipeline.ranker` makes either.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from pipeline.collections.topics import Topic
from pipeline.collections.trec import Run, ranked
from pipeline.defaults import DEFAULT_HITS
from pipeline.errors import DataError, UsageError
from pipeline.ranking.interpolation import interpolate
from pipeline.text import did_you_mean, listed

if TYPE_CHECKING:
    from pipeline.collections.collection import Collection
    from pipeline.explanation.contributions import FusionExplanation
    from pipeline.explanation.matches import MatchExplanation
    from pipeline.explanation.rank_changes import RerankedTopic
    from pipeline.ranking.retrievers import Candidates, Retriever
    from rerankers.reranker import Model


Progress = Callable[[int], None]
"""Called with numbers of pairs that have been scored since the last call."""

ProgressBar = Callable[[int], AbstractContextManager[Progress]]
"""Number of pairs to score -> a progress bar."""


def silent(done: int) -> None:
    """Report nothing."""


def hidden(pairs: int) -> AbstractContextManager[Progress]:
    """Show no progress bar."""
    return nullcontext(silent)


@dataclass(frozen=True)
class ModelScorer:
    """A trained model that scores candidates by their texts and first-stage scores."""

    checkpoint: Model

    @property
    def name(self) -> str:
        """The model's name."""
        return self.checkpoint.name

    def with_needs(self, candidates: Candidates, collection: Collection | None) -> Candidates:
        """Candidates with what the model reads of their collection: its adapted word vectors."""
        from pipeline.ranking.retrievers import with_space
        from rerankers.text.spaces import ADAPTED

        is_read = f"meaning:{ADAPTED}" in self.checkpoint.families
        return with_space(candidates, collection) if is_read else candidates

    def score(self, candidates: Candidates, progress: Progress = silent) -> Run:
        """The score of each candidate, higher is better."""
        return candidates.run_of(self.checkpoint.score(candidates.pairs(), progress))


class Ranking(NamedTuple):
    """Result of a :class:`Ranker`."""

    stages: Mapping[str, Run]  # Name -> run of each stage, in order; the last one is the result
    candidates: Candidates  # The posts that were scored, with their first-stage scores
    seconds: Mapping[str, float]
    """Stage -> seconds of its own work, which another may have shared the cores with."""
    collection: Collection | None = None  # Whose topics these are; None if it is not known

    @property
    def run(self) -> Run:
        """The last stage's run: query_id -> doc_id -> score, as pytrec_eval and ir_measures."""
        return list(self.stages.values())[-1]

    def after(self, *others: Ranking) -> Ranking:
        """This ranking with the stages of others of the same topics before its own."""
        stages: dict[str, Run] = {}
        seconds = dict(self.seconds)
        for other in others:
            stages |= other.stages
            seconds |= other.seconds
        own = {name: run for name, run in self.stages.items() if name not in stages}
        return self._replace(stages=stages | own, seconds=seconds)

    def to_dataframe(self) -> Any:
        """The run as a pandas DataFrame with PyTerrier's columns, best first, ranks from 0.

        The columns are qid, query, docno, text, url, score and rank.
        """
        import pandas

        posts, rows = self.candidates.posts, []
        for topic in self.candidates.topics:
            best = ranked(self.run.get(topic.query_id, {}))
            for rank, (doc_id, score) in enumerate(best):
                post = posts.get(doc_id)
                text, url = (post.text, post.url) if post else ("", "")
                rows.append((topic.query_id, topic.text, doc_id, text, url, score, rank))
        return pandas.DataFrame(
            rows, columns=["qid", "query", "docno", "text", "url", "score", "rank"]
        )


class Ranker(Protocol):
    """Ranks posts for topics: finds candidates, scores them, combines the scores."""

    @property
    def name(self) -> str:
        """Name of the model, or of the first stage without one."""

    @property
    def scorer(self) -> ModelScorer | None:
        """The model; None for the first stage alone."""

    @property
    def weight(self) -> float | None:
        """λ; None for a ranker that has none."""

    @property
    def description(self) -> str:
        """How its scores come about, for reports; "" without a model."""

    @property
    def collection(self) -> Collection | None:
        """What is searched; None if candidates are always given."""

    def rank(
        self, topics: Topics = None, hits: int = DEFAULT_HITS, progress: ProgressBar = hidden
    ) -> Ranking:
        """Find the best ``hits`` candidates of each topic, and rerank them.

        Args:
            topics: query_ids with texts, one text, or None for the collection's topics.
            hits: candidates for each topic.
            progress: number of candidates -> a progress bar.
        """

    def rerank(self, candidates: Candidates, progress: ProgressBar = hidden) -> Ranking:
        """Rank given candidates: of a run, a request, or a page of a search engine."""

    def explain(
        self, ranking: Ranking, doc_ids: Sequence[str] = (), query_id: str = "", show: int = 10
    ) -> MatchExplanation | FusionExplanation:
        """Reasons for the ranks of a topic's posts in a ranking by this ranker.

        Args:
            ranking: result of :meth:`rank` or :meth:`rerank`.
            doc_ids: posts to explain; else the ``show`` best ones and those that moved most.
            query_id: the topic; "" is the only one.

        Raises:
            UsageError: the model has no explanation, or the posts or the topic are not there.
        """


Topics = Sequence[Topic] | str | None
"""Topics to rank: all of a collection for None, one for a text."""

OWN_TOPIC = "q1"  # query_id of a text that is no topic of the collection


class Stopwatch:
    """Seconds of successive stages, by a clock."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.seconds: dict[str, float] = {}
        self._clock, self._since = clock, clock()

    def stop(self, stage: str) -> None:
        """What was done since the last stop is this stage's."""
        now = self._clock()
        self.seconds[stage], self._since = now - self._since, now


def topics_of(collection: Collection | None, topics: Topics) -> Sequence[Topic]:
    """Topics as records."""
    if isinstance(topics, str):
        return [Topic(OWN_TOPIC, topics)]
    if topics is not None:
        return topics
    if collection is None:
        raise UsageError("`topics`: found none, expected some: this ranker has no collection")
    return collection.topics


class Mixing(NamedTuple):
    """The share of the new score."""

    weight: float = 1.0  # λ, the new score's share; 1 leaves it as it is
    origin: str = "given"  # Where λ is from, for reports

    def __str__(self) -> str:
        return f"λ = {self.weight:g} ({self.origin})"


@dataclass(frozen=True)
class Mixture:
    """λ · a model's score + (1 − λ) · the first stage's (Rao et al. 2019, equation 2)."""

    retriever: Retriever | None  # Finds the candidates; None if they are always given
    scorer: ModelScorer | None  # Gives the new scores; None keeps the first stage's ranking
    mixing: Mixing = Mixing()  # λ
    collection: Collection | None = None  # That the retriever searches

    @property
    def name(self) -> str:
        """Name of the model, or of the first stage without one."""
        return self.scorer.name if self.scorer else self._first_stage

    @property
    def weight(self) -> float | None:
        """λ; None without a model."""
        return self.mixing.weight if self.scorer else None

    @property
    def description(self) -> str:
        """λ and its origin."""
        return str(self.mixing) if self.scorer else ""

    @property
    def _first_stage(self) -> str:
        return self.retriever.name if self.retriever else "first stage"

    def rank(
        self, topics: Topics = None, hits: int = DEFAULT_HITS, progress: ProgressBar = hidden
    ) -> Ranking:
        """Find candidates, score them, mix both scores; see :class:`Ranker`."""
        if self.retriever is None:
            raise UsageError("found no retriever, expected one; give candidates to rerank()")
        watch = Stopwatch()
        candidates = self.retriever.search(topics_of(self.collection, topics), hits)
        watch.stop(self._first_stage)
        return self._ranked(candidates, progress, watch)

    def rerank(self, candidates: Candidates, progress: ProgressBar = hidden) -> Ranking:
        """Score candidates and mix both scores; see :class:`Ranker`."""
        return self._ranked(candidates, progress, Stopwatch())

    def _ranked(self, candidates: Candidates, progress: ProgressBar, watch: Stopwatch) -> Ranking:
        stages = {self._first_stage: candidates.run}
        if self.scorer:
            candidates = self.scorer.with_needs(candidates, self.collection)
            with progress(len(candidates)) as report:
                scores = self.scorer.score(candidates, report)
            stages[self.scorer.name] = scores
            watch.stop(self.scorer.name)
            weight = self.mixing.weight
            if weight != 1:
                name = f"{self.scorer.name} + {self._first_stage} (λ = {weight:g})"
                stages[name] = interpolate(candidates.run, scores, weight)
                watch.stop(name)
        return Ranking(stages, candidates, watch.seconds, self.collection)

    def explain(
        self, ranking: Ranking, doc_ids: Sequence[str] = (), query_id: str = "", show: int = 10
    ) -> MatchExplanation | FusionExplanation:
        """The matches of query and posts, or what features contribute; see :class:`Ranker`."""
        from pipeline.explanation import contributions, matches

        scorer = self.scorer
        if scorer is None or not scorer.checkpoint.explains:
            raise UsageError(
                f"found {self.name}, expected a model with an explanation: mp_hcnn, window or a "
                "fusion"
            )
        if scorer.checkpoint.explains == "contributions":
            stages = {self._first_stage: ranking.candidates.run, scorer.name: ranking.run}
            topic = reranked_topic(self.collection, ranking, stages, doc_ids, query_id, show)
            return contributions.explain(topic, scorer.checkpoint)
        stages = {
            "before": ranking.candidates.run,
            "neural": ranking.stages[scorer.name],
            "after": ranking.run,
        }
        topic = reranked_topic(self.collection, ranking, stages, doc_ids, query_id, show)
        weight, origin = self.mixing
        # The page may be given away: without the path that follows.
        mixing = f"λ = {weight:g} ({origin.partition('; ')[0]}), scores normalised by minmax"
        return matches.explain(topic, scorer.checkpoint, self._first_stage, mixing)


def reranked_topic(
    collection: Collection | None,
    ranking: Ranking,
    stages: Mapping[str, Run],
    doc_ids: Sequence[str],
    query_id: str,
    show: int,
) -> RerankedTopic:
    """A topic's ranks in the stages of its ranking, and the posts to explain.

    Raises:
        UsageError: the topic or a post is not there.
        DataError: the topic has no candidates.
    """
    from pipeline.explanation.rank_changes import RerankedTopic, choose, rank_changes

    topics = {topic.query_id: topic for topic in ranking.candidates.topics}
    query_id = query_id or (next(iter(topics)) if len(topics) == 1 else "")
    if query_id not in topics:
        raise UsageError(
            f"`query_id`: found {query_id!r}, expected a topic of the ranking: "
            f"{listed(list(topics), 8)}{did_you_mean(query_id, list(topics))}"
        )
    scored = ranking.candidates.run.get(query_id)
    if not scored:
        raise DataError(
            f"topic {query_id} “{topics[query_id].text}”: found no candidates to rank, expected "
            "some; try another topic or other candidates"
        )
    # Posts that are not scored follow below, and have nothing to explain; the result has its best.
    shown = [doc_id for doc_id in scored if doc_id in ranking.run[query_id]]
    runs = {name: {d: run[query_id][d] for d in shown} for name, run in stages.items()}
    changes = rank_changes(runs)
    if unknown := [doc_id for doc_id in doc_ids if doc_id not in changes]:
        expected = f"expected one of the {len(changes)} candidates of topic {query_id}"
        known = listed(list(changes), 8)
        raise UsageError([f"`doc_id`: found {d!r}, {expected}: {known}" for d in unknown])
    named = {"named posts": list(dict.fromkeys(doc_ids))}
    return RerankedTopic(
        collection.name if collection else "",
        topics[query_id],
        replace(ranking.candidates, topics=[topics[query_id]]),
        changes,
        ((collection.qrels if collection else None) or {}).get(query_id, {}),
        named if doc_ids else choose(changes, show),
    )
