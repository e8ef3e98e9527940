"""Candidates, and retrievers that find them in an index, a run, or a collection."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tweetrerank.indexes.data_error import DataError
from tweetrerank.indexes.engines.engine_index import EngineIndex
from tweetrerank.indexes.lucene_index import LuceneIndex
from tweetrerank.indexes.methods import METHODS, EngineQuery, Method
from tweetrerank.indexes.posts import Post
from tweetrerank.pipeline.collections.collection import Collection
from tweetrerank.pipeline.collections.topics import Topic
from tweetrerank.pipeline.collections.trec import (
    Run,
    aligned,
    best_of,
    ranked,
    read_run,
)
from tweetrerank.pipeline.command.options import apply_changes
from tweetrerank.pipeline.defaults import DEFAULT_HITS, DEFAULT_METHOD
from tweetrerank.pipeline.text import did_you_mean, listed, note, say
from tweetrerank.pipeline.usage_error import UsageError
from tweetrerank.rerankers.features.judged import JUDGED
from tweetrerank.rerankers.model import Model
from tweetrerank.rerankers.pairs import (
    FIRST_STAGE,
    NUMBER,
    ORDER,
    PRIOR,
    Pairs,
    Resources,
    Rows,
    number_of,
    places_of,
    prior_of_rank,
)
from tweetrerank.rerankers.text.spaces import ADAPTED

# Name of a signal -> its value for each pair, [P]
Signals = dict[str, npt.NDArray[np.floating]]


@dataclass(frozen=True)
class Candidates:
    """Posts to rank for each topic."""

    # All topics of the search, including those without a result
    topics: Sequence[Topic]
    run: Run  # First-stage score of each candidate
    posts: Mapping[str, Post]  # doc_id -> post, for every candidate
    priors: Run | None = None
    """query_id -> doc_id -> prior of a candidate (:func:`priors_of`). Candidates that
    it lacks have the prior 0. None computes priors from the ranks of ``run``."""
    signals: Mapping[str, Run] = field(default_factory=dict)
    """Name of a ranker -> its run, for the features ``signal:NAME``. A ranker may lack
    some candidates."""
    resources: Mapping[str, Resources] = field(default_factory=dict, repr=False)
    """query_id -> resources of the topic's collection, such as adapted word vectors."""
    rest: Run = field(default_factory=dict, repr=False)
    """First-stage scores, from 0 to 1, of further posts. These posts are not scored by
    the model and rank last."""
    forms: Mapping[str, str] = field(default_factory=dict, repr=False)
    """query_id -> the part of the first stage that models may read: ``scores`` (the
    default), ``order`` (only the order of the posts), or ``nothing``."""
    seconds: Mapping[str, float] = field(default_factory=dict, repr=False)
    """Name of a search that contributed candidates -> its seconds."""

    def __len__(self) -> int:
        return sum(len(self.run.get(topic.query_id, {})) for topic in self.topics)

    def keys(self) -> list[tuple[str, str]]:
        """Return (query_id, doc_id) of each candidate, ordered as :meth:`pairs`."""
        keys = []
        for topic in self.topics:
            query_id = topic.query_id
            keys += [(query_id, doc_id) for doc_id in self.run.get(query_id, {})]
        return keys

    def pairs(self) -> Pairs:
        """Return the candidates as pairs of texts for a model.

        Signals that are unknown for a pair are NaN.
        """
        pairs = self.texts
        resources: Sequence[Resources] = ()
        if self.resources:
            resources = [
                self.resources.get(topic.query_id, {}) for topic in self.topics
            ]
        return replace(pairs, signals=self._signals(pairs), resources=resources)

    def scored_by(self, model: Model) -> Run:
        """Return the scores that a model gives to the candidates. Higher is better."""
        return self.run_of(model.score(self.pairs()))

    def run_of(self, scores: npt.NDArray[np.floating]) -> Run:
        """Return scores [P], given in the order of :meth:`pairs`, as a run.

        A candidate with a NaN score is left out. The posts of :attr:`rest` follow below
        all candidates. Topics without any post are left out.
        """
        run: Run = {}
        values = scores.tolist()
        start = 0
        for topic in self.topics:
            doc_ids = self.run.get(topic.query_id, {})
            end = start + len(doc_ids)
            topic_scores = zip(doc_ids, values[start:end], strict=True)
            start = end
            ranking = {
                doc_id: score
                for doc_id, score in topic_scores
                if score == score  # Not NaN
            }
            rest = self.rest.get(topic.query_id)
            if rest:
                lowest = min(ranking.values(), default=0.0) - 1.0
                for doc_id, score in rest.items():
                    ranking[doc_id] = lowest - 1.0 + score
            if ranking:
                run[topic.query_id] = ranking
        return run

    @cached_property
    def texts(self) -> Pairs:
        """The pairs of texts, without signals."""
        query_rows = {topic.query_id: row for row, topic in enumerate(self.topics)}
        post_rows = {doc_id: row for row, doc_id in enumerate(self.posts)}
        keys = self.keys()
        return Pairs(
            queries=[topic.text for topic in self.topics],
            texts=[post.text for post in self.posts.values()],
            urls=[post.url for post in self.posts.values()],
            query_index=np.array([query_rows[query] for query, _ in keys], np.int64),
            post_index=np.array([post_rows[doc_id] for _, doc_id in keys], np.int64),
            signals={},
            doc_ids=list(self.posts),
        )

    def _signals(self, pairs: Pairs) -> Signals:
        """Return the signals of the pairs."""
        scores = self._scores(self.run, np.nan, np.float64)
        order = places_of(pairs.query_index, scores.astype(np.float32))
        forms = [self.forms.get(topic.query_id, "scores") for topic in self.topics]
        pair_forms = np.array(forms, dtype=object)[pairs.query_index]  # [P]
        priors = priors_of([self.run]) if self.priors is None else self.priors
        signals: Signals = {
            name: self._scores(run, np.nan) for name, run in self.signals.items()
        }
        signals |= self._numbers(pairs.post_index)
        signals[FIRST_STAGE] = np.where(pair_forms == "scores", scores, np.nan)
        signals[ORDER] = np.where(pair_forms != "nothing", order, np.nan)
        signals[PRIOR] = self._scores(priors, 0.0)
        return signals

    def _numbers(self, post_rows: Rows) -> Signals:
        """Return the numbers of the posts as signals [P].

        ``post_rows`` [P] holds the row of each pair's post.
        """
        posts = self.posts.values()
        names: dict[str, None] = {}
        for post in posts:
            names |= dict.fromkeys(post.signals)
        signals: Signals = {}
        for name in names:
            values = [number_of(post.signals.get(name)) for post in posts]
            signals[NUMBER + name] = np.array(values)[post_rows]
        return signals

    def _scores(
        self, run: Run, unknown: float, kind: type = np.float32
    ) -> npt.NDArray[Any]:
        """Return the scores [P] of a run, in the order of :meth:`pairs`.

        A candidate that the run lacks gets the value ``unknown``.
        """
        if not run:
            return np.full(len(self), unknown, dtype=kind)
        scores_of_topics = (
            map(
                run.get(topic.query_id, {}).get,
                self.run.get(topic.query_id, {}),
                repeat(unknown),
            )
            for topic in self.topics
        )
        return np.fromiter(chain.from_iterable(scores_of_topics), dtype=kind)


def with_resources(
    candidates: Candidates, collection: Collection | None, judged_posts: bool = False
) -> Candidates:
    """Return the candidates with the resources of their collection.

    These are the collection's adapted word vectors, if it has any, and with
    ``judged_posts`` also the judgments to train on.
    """
    knowledge: dict[str, Any] = {}
    if collection and collection.adapted_space:
        knowledge[ADAPTED] = collection.adapted_space
    if collection and judged_posts:
        knowledge[JUDGED] = collection.judged_posts
    if not knowledge:
        return candidates
    resources = {}
    for topic in candidates.topics:
        present = candidates.resources.get(topic.query_id, {})
        resources[topic.query_id] = dict(present) | knowledge
    return replace(candidates, resources=resources)


def priors_of(runs: Sequence[Run]) -> Run:
    """Return the mean over ``runs`` of 1 / ln(rank + 1).

    A run that lacks a candidate counts as 0 for it. Source: Severyn and Moschitti
    (2015), section 5.
    """

    def priors(scores: Mapping[str, float]) -> dict[str, float]:
        values = prior_of_rank(np.arange(1, len(scores) + 1)).tolist()
        doc_ids = [doc_id for doc_id, _ in ranked(scores)]
        return dict(zip(doc_ids, values, strict=True))

    return mean_over(runs, priors)


def mean_over(
    runs: Sequence[Run],
    value_of: Callable[[dict[str, float]], dict[str, float]],
) -> Run:
    """Return the mean over ``runs`` of each candidate's value.

    A run that lacks a candidate counts as 0 for it. ``value_of`` takes the scores of a
    topic and returns the values of its candidates.
    """
    total: Run = {}
    for run in runs:
        for query_id, scores in run.items():
            sums = total.setdefault(query_id, {})
            for doc_id, value in value_of(scores).items():
                sums[doc_id] = sums.get(doc_id, 0.0) + value / len(runs)
    return total


class Retriever(Protocol):
    """Finds candidates for topics."""

    @property
    def name(self) -> str:
        """Where the candidates come from, for reports."""

    def search(self, topics: Sequence[Topic], hits: int = DEFAULT_HITS) -> Candidates:
        """Return the best ``hits`` posts of each topic."""


def without_own_ids(run: Run) -> Run:
    """Return a run without results that have the same id as their topic.

    BEIR's evaluation also removes them. A note reports it once.
    """
    if any(query_id in scores for query_id, scores in run.items()):
        note(
            "a post with the id of the query does not count as its result, as in "
            "BEIR's figures"
        )
    remaining: Run = {}
    for query_id, scores in run.items():
        remaining[query_id] = {
            doc_id: score for doc_id, score in scores.items() if doc_id != query_id
        }
    return remaining


@dataclass(frozen=True)
class IndexRetriever:
    """Finds candidates by a search in an index."""

    index: LuceneIndex | EngineIndex
    method: Method
    skips_own_id: bool = False  # Whether to leave out a post with the topic's id

    @property
    def name(self) -> str:
        """Name of the search method."""
        return self.method.name

    def run(self, topics: Sequence[Topic], hits: int) -> Run:
        """Return the scores of the best ``hits`` posts of each topic."""
        run = self.index.search(topics, self.method, hits=hits + self.skips_own_id)
        if not self.skips_own_id:
            return run
        return {
            query_id: dict(islice(scores.items(), hits))
            for query_id, scores in without_own_ids(run).items()
        }

    def search(self, topics: Sequence[Topic], hits: int = DEFAULT_HITS) -> Candidates:
        """Return the best ``hits`` posts of each topic.

        They are not later than its topic.
        """
        run = self.run(topics, hits)
        return Candidates(topics, run, self.index.posts.get_many(doc_ids_of(run)))


@dataclass(frozen=True)
class RunRetriever:
    """Takes candidates from a run."""

    run: Run
    find_posts: Callable[[Sequence[str]], Mapping[str, Post]]
    """Returns doc_id -> post for those of the given doc_ids that the collection has."""
    name: str  # Name of the run, for reports and messages
    skip_unknown: bool = False
    """Whether to leave out posts that the collection lacks instead of raising an
    error."""

    def search(self, topics: Sequence[Topic], hits: int = DEFAULT_HITS) -> Candidates:
        """Return the first ``hits`` posts of each topic in the run.

        If posts are left out, the others keep the prior of their rank in the complete
        run. Raises DataError if the run has none of the topics, or if the collection
        lacks posts of the run that are not to be left out, or lacks all of them.
        """
        run = self._run_of(topics)
        # If posts are left out, the run must supply more than the best hits.
        requested = run if self.skip_unknown else best_of(run, hits)
        doc_ids = doc_ids_of(requested)
        posts = self.find_posts(doc_ids)
        unknown = [doc_id for doc_id in doc_ids if doc_id not in posts]
        if not unknown:
            return Candidates(topics, best_of(requested, hits), posts)
        problem = (
            f"{self.name}: {len(unknown)} of its {len(doc_ids)} posts are not in the "
            "collection"
        )
        if not self.skip_unknown or not posts:
            remedy = "name the collection that the run was made on"
            if not self.skip_unknown:
                remedy += ", or leave them out by --skip-unknown"
            raise DataError(f"{problem} ({listed(unknown)}); {remedy}")
        say(f"{problem}; left out before and after")
        best = best_of(_with_posts(run, posts), hits)
        return Candidates(topics, best, posts, priors=priors_of([run]))

    def _run_of(self, topics: Sequence[Topic]) -> Run:
        """Return the part of the run for these topics, under the topics' own ids.

        Raises DataError if there is none.
        """
        query_ids = [topic.query_id for topic in topics]
        aligned_run = aligned(self.run, query_ids, self.name)
        run = {}
        for query_id in query_ids:
            scores = aligned_run.get(query_id)
            if scores:
                run[query_id] = scores
        if not run:
            raise DataError(
                f"{self.name}: found results for {listed(list(self.run))}, expected "
                f"some for the topics {listed(query_ids)}"
            )
        return run


def _with_posts(run: Run, posts: Mapping[str, Post]) -> Run:
    """Return the run restricted to these posts.

    Topics left without a result are omitted.
    """
    remaining: Run = {}
    for query_id, scores in run.items():
        in_collection = {
            doc_id: score for doc_id, score in scores.items() if doc_id in posts
        }
        if in_collection:
            remaining[query_id] = in_collection
    return remaining


@dataclass(frozen=True)
class GivenRetriever:
    """Takes the candidates, without scores, that come with a collection's topics."""

    collection: Collection
    name: str = "given, by id"

    def search(self, topics: Sequence[Topic], hits: int = DEFAULT_HITS) -> Candidates:
        """Return all candidates of each topic. The argument ``hits`` is ignored."""
        candidates = self.collection.given_candidates or {}
        run = {topic.query_id: candidates.get(topic.query_id, {}) for topic in topics}
        posts = self.collection.find_posts(doc_ids_of(run))
        forms = dict.fromkeys(run, "nothing")
        # Without scores there are no ranks, so there are no priors.
        return Candidates(topics, run, posts, priors={}, forms=forms)


def retriever_for(
    collection: Collection,
    candidates: str | None = None,
    method: str | None = None,
    parameters: Sequence[str] = (),
    skip_unknown: bool = False,
) -> Retriever:
    """Return the retriever of a collection's candidates.

    The arguments are those of :func:`tweetrerank.ranker`. Without ``candidates`` the
    index is searched, unless candidates come with the topics. With ``skip_unknown``,
    posts of ``candidates`` that the collection lacks are left out.
    """
    if candidates:
        run = read_run(collection.runs.get(candidates, Path(candidates)))
        if collection.skips_own_id:
            run = without_own_ids(run)
        return RunRetriever(run, collection.find_posts, candidates, skip_unknown)
    if collection.given_candidates is not None:
        return GivenRetriever(collection)
    # Report wrong arguments before an engine gets a request.
    search_method = _method(collection, method, parameters)
    return IndexRetriever(
        collection.open_index(), search_method, collection.skips_own_id
    )


def _method(
    collection: Collection, name: str | None, parameters: Sequence[str]
) -> Method:
    """Return the search method of this name with changed parameters.

    An index that ranks by its own query offers no other method. Raises UsageError if
    the collection does not offer the method, or if a parameter is wrong.
    """
    offered = collection.methods
    if collection.engine and not offered:
        if name or parameters:
            raise UsageError(
                f"`first_stage`: {collection.engine} is ranked by its own query; leave "
                "it and `parameters` out"
            )
        return EngineQuery()
    if name is not None and name not in METHODS:
        raise UsageError(
            f"`first_stage`: found {name!r}, expected one of {', '.join(METHODS)}"
            f"{did_you_mean(name, list(METHODS))}"
        )
    default = METHODS[name or DEFAULT_METHOD]()
    method: Method = apply_changes(default, parameters, "--parameter")
    if collection.engine and method.name not in offered:
        raise UsageError(
            f"`first_stage`: found {method.name}, expected one of "
            f"{', '.join(offered)}, which a search engine offers; search a local index "
            "(without an engine's address) for others"
        )
    return method


def doc_ids_of(run: Run) -> list[str]:
    """Return each post id of a run once."""
    doc_ids: dict[str, None] = {}
    for scores in run.values():
        doc_ids |= dict.fromkeys(scores)
    return list(doc_ids)
