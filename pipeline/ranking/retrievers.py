"""Candidates, and the retrievers that find them: in an index, in a run, or with the topics."""

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
    number_of,
    places_of,
    prior_of_rank,
)
from tweetrerank.rerankers.text.spaces import ADAPTED


@dataclass(frozen=True)
class Candidates:
    """Posts to rank for each topic."""

    topics: Sequence[Topic]  # All topics of the search, those without a result too
    run: Run  # First-stage score of each candidate
    posts: Mapping[str, Post]  # doc_id -> post, for every candidate
    priors: Run | None = None
    """query_id -> doc_id -> prior of a candidate (:func:`priors_of`), 0 where absent; None takes
    the ranks of ``run``."""
    signals: Mapping[str, Run] = field(default_factory=dict)
    """Name -> query_id -> doc_id -> score by a ranker of this name, for the features
    ``signal:NAME``; a ranker need not have every candidate."""
    resources: Mapping[str, Resources] = field(default_factory=dict, repr=False)
    """query_id -> what is known of its collection."""
    rest: Run = field(default_factory=dict, repr=False)
    """First-stage score, from 0 to 1, of further posts, which are not scored and rank last."""
    forms: Mapping[str, str] = field(default_factory=dict, repr=False)
    """query_id -> what of the first stage is known to models that read it: ``scores``, the
    ``order`` of its posts, or ``nothing``; ``scores`` where absent."""
    seconds: Mapping[str, float] = field(default_factory=dict, repr=False)
    """Name -> seconds of the searches that these are joined of."""

    def __len__(self) -> int:
        return sum(len(self.run.get(topic.query_id, {})) for topic in self.topics)

    def keys(self) -> list[tuple[str, str]]:
        """(query_id, doc_id) of every candidate, in the order of :meth:`pairs`."""
        return [
            (t.query_id, d) for t in self.topics for d in self.run.get(t.query_id, {})
        ]

    def pairs(self) -> Pairs:
        """The candidates as pairs of texts, for a model; NaN where a signal is unknown."""
        pairs, scores = self.texts, self._scores(self.run, np.nan, np.float64)
        order = places_of(pairs.query_index, scores.astype(np.float32))
        forms = [self.forms.get(topic.query_id, "scores") for topic in self.topics]
        of_pairs = np.array(forms, dtype=object)[pairs.query_index]
        priors = priors_of([self.run]) if self.priors is None else self.priors
        posts, rows = self.posts.values(), pairs.post_index
        numbers = dict.fromkeys(name for post in posts for name in post.signals)
        signals = {
            **{name: self._scores(run, np.nan) for name, run in self.signals.items()},
            **{
                NUMBER + name: np.array(
                    [number_of(post.signals.get(name)) for post in posts]
                )[rows]
                for name in numbers
            },
            FIRST_STAGE: np.where(of_pairs == "scores", scores, np.nan),
            ORDER: np.where(of_pairs != "nothing", order, np.nan),
            PRIOR: self._scores(priors, 0.0),
        }
        known = (
            [self.resources.get(t.query_id, {}) for t in self.topics]
            if self.resources
            else ()
        )
        return replace(pairs, signals=signals, resources=known)

    def scored_by(self, model: Model) -> Run:
        """The candidates' scores by a model, higher is better."""
        return self.run_of(model.score(self.pairs()))

    def run_of(self, scores: npt.NDArray[np.floating]) -> Run:
        """Scores [P], in the order of :meth:`pairs`, as a run; NaN leaves a candidate out. The
        posts of :attr:`rest` follow below."""
        run: Run = {}
        left = iter(scores.tolist())  # Each topic takes as many as it has candidates.
        for topic in self.topics:
            doc_ids = self.run.get(topic.query_id, {})
            found = {d: s for d, s in zip(doc_ids, left, strict=False) if s == s}
            if rest := self.rest.get(topic.query_id):
                lowest = min(found.values(), default=0.0) - 1.0
                found |= {
                    doc_id: lowest - 1.0 + score for doc_id, score in rest.items()
                }
            if found:
                run[topic.query_id] = found
        return run

    @cached_property
    def texts(self) -> Pairs:
        """Pairs without signals."""
        query_rows = {topic.query_id: row for row, topic in enumerate(self.topics)}
        post_rows = {doc_id: row for row, doc_id in enumerate(self.posts)}
        keys = self.keys()
        return Pairs(
            [topic.text for topic in self.topics],
            [post.text for post in self.posts.values()],
            [post.url for post in self.posts.values()],
            np.array([query_rows[query_id] for query_id, _ in keys], dtype=np.int64),
            np.array([post_rows[doc_id] for _, doc_id in keys], dtype=np.int64),
            {},
            list(self.posts),
        )

    def _scores(
        self, run: Run, unknown: float, kind: type = np.float32
    ) -> npt.NDArray[Any]:
        """[P] scores of a run, in the order of :meth:`pairs`."""
        if not run:
            return np.full(len(self), unknown, dtype=kind)
        found = (
            map(
                run.get(topic.query_id, {}).get,
                self.run.get(topic.query_id, {}),
                repeat(unknown),
            )
            for topic in self.topics
        )
        return np.fromiter(chain.from_iterable(found), dtype=kind)


def with_resources(
    candidates: Candidates, collection: Collection | None, judged_posts: bool = False
) -> Candidates:
    """Candidates with the word vectors adapted to their collection, if it has them, and if wanted
    with its judgments to train on, besides what is known of it."""
    space = collection.adapted_space if collection else None
    known: Resources = {ADAPTED: space} if space else {}
    if collection and judged_posts:
        known = {**known, JUDGED: collection.judged_posts}
    resources = {
        topic.query_id: {**candidates.resources.get(topic.query_id, {}), **known}
        for topic in candidates.topics
    }
    return replace(candidates, resources=resources) if known else candidates


def priors_of(runs: Sequence[Run]) -> Run:
    """The mean over ``runs`` of 1 / ln(rank + 1), 0 outside a run (Severyn & Moschitti 2015)."""

    def priors(scores: Mapping[str, float]) -> dict[str, float]:
        values = prior_of_rank(np.arange(1, len(scores) + 1)).tolist()
        return {
            doc_id: v for (doc_id, _), v in zip(ranked(scores), values, strict=True)
        }

    return mean_over(runs, priors)


def mean_over(
    runs: Sequence[Run], of: Callable[[dict[str, float]], dict[str, float]]
) -> Run:
    """The mean over ``runs`` of each candidate's value ``of`` a topic's scores, 0 outside a run."""
    total: Run = {}
    for run in runs:
        for query_id, scores in run.items():
            sums = total.setdefault(query_id, {})
            for doc_id, value in of(scores).items():
                sums[doc_id] = sums.get(doc_id, 0.0) + value / len(runs)
    return total


class Retriever(Protocol):
    """Finds candidates."""

    @property
    def name(self) -> str:
        """Origin of the candidates, for reports."""

    def search(self, topics: Sequence[Topic], hits: int = DEFAULT_HITS) -> Candidates:
        """The best ``hits`` posts of each topic."""


def without_own_ids(run: Run) -> Run:
    """A run in which a topic's results lack the post of its id, as in BEIR's evaluation."""
    if any(query_id in scores for query_id, scores in run.items()):
        note(
            "a post with the id of the query does not count as its result, as in BEIR's figures"
        )
    return {q: {d: s for d, s in scores.items() if d != q} for q, scores in run.items()}


@dataclass(frozen=True)
class IndexRetriever:
    """Finds candidates in an index."""

    index: LuceneIndex | EngineIndex
    method: Method
    skips_own_id: bool = (
        False  # Whether a post with the id of a topic is none of its results
    )

    @property
    def name(self) -> str:
        """The method's name."""
        return self.method.name

    def run(self, topics: Sequence[Topic], hits: int) -> Run:
        """The scores of the best ``hits`` posts of each topic."""
        run = self.index.search(topics, self.method, hits=hits + self.skips_own_id)
        if not self.skips_own_id:
            return run
        kept = without_own_ids(run).items()
        return {
            query_id: dict(islice(scores.items(), hits)) for query_id, scores in kept
        }

    def search(self, topics: Sequence[Topic], hits: int = DEFAULT_HITS) -> Candidates:
        """The best ``hits`` posts of each topic, none of them later than the topic."""
        run = self.run(topics, hits)
        return Candidates(topics, run, self.index.posts.get_many(doc_ids_of(run)))


@dataclass(frozen=True)
class RunRetriever:
    """Takes candidates from a run."""

    run: Run
    find_posts: Callable[[Sequence[str]], Mapping[str, Post]]
    """doc_ids -> those posts that the collection has."""
    name: str  # Name of the run, for reports and messages
    skip_unknown: bool = (
        False  # Leave out posts that the collection lacks; else they are an error
    )

    def search(self, topics: Sequence[Topic], hits: int = DEFAULT_HITS) -> Candidates:
        """The first ``hits`` posts of each topic in the run. Where posts are left out, the others
        keep the prior of their rank in the whole run. Raises DataError if the run has none of the
        topics, or posts that the collection lacks."""
        query_ids = [topic.query_id for topic in topics]
        known = aligned(self.run, query_ids, self.name)
        run = {
            query_id: known[query_id] for query_id in query_ids if known.get(query_id)
        }
        if not run:
            raise DataError(
                f"{self.name}: found results for {listed(list(self.run))}, expected some for "
                f"the topics {listed(query_ids)}"
            )
        kept = run if self.skip_unknown else best_of(run, hits)
        doc_ids = doc_ids_of(kept)
        posts = self.find_posts(doc_ids)
        if not (unknown := [doc_id for doc_id in doc_ids if doc_id not in posts]):
            return Candidates(topics, best_of(kept, hits), posts)
        found = f"{self.name}: {len(unknown)} of its {len(doc_ids)} posts are not in the collection"
        if not self.skip_unknown or not posts:
            advice = (
                "" if self.skip_unknown else ", or leave them out by --skip-unknown"
            )
            raise DataError(
                f"{found} ({listed(unknown)}); name the collection that the run was made on{advice}"
            )
        say(f"{found}; left out before and after")
        kept = {
            q: {d: s for d, s in scores.items() if d in posts}
            for q, scores in run.items()
        }
        best = best_of({q: scores for q, scores in kept.items() if scores}, hits)
        return Candidates(topics, best, posts, priors=priors_of([run]))


@dataclass(frozen=True)
class GivenRetriever:
    """Takes the candidates that come with a collection's topics; they have no scores."""

    collection: Collection
    name: str = "given, by id"

    def search(self, topics: Sequence[Topic], hits: int = DEFAULT_HITS) -> Candidates:
        """All given candidates of each topic, whatever ``hits``."""
        given = self.collection.given_candidates or {}
        run = {topic.query_id: given.get(topic.query_id, {}) for topic in topics}
        posts, forms = (
            self.collection.find_posts(doc_ids_of(run)),
            dict.fromkeys(run, "nothing"),
        )
        # Without scores there are no ranks to make priors of.
        return Candidates(topics, run, posts, priors={}, forms=forms)


def retriever_for(
    collection: Collection,
    candidates: str | None = None,
    method: str | None = None,
    parameters: Sequence[str] = (),
    skip_unknown: bool = False,
) -> Retriever:
    """The source of a collection's candidates, for the arguments of :func:`tweetrerank.pipeline.ranker`.
    ``candidates`` None searches the index, or takes the candidates that come with the topics."""
    if candidates:
        run = read_run(collection.runs.get(candidates, Path(candidates)))
        if collection.skips_own_id:
            run = without_own_ids(run)
        return RunRetriever(run, collection.find_posts, candidates, skip_unknown)
    if collection.given_candidates is not None:
        return GivenRetriever(collection)
    found = _method(collection, method, parameters)  # Before an engine is asked.
    return IndexRetriever(collection.open_index(), found, collection.skips_own_id)


def _method(
    collection: Collection, name: str | None, parameters: Sequence[str]
) -> Method:
    """The method of this name with its changes; that of the index, if it has one of its own."""
    offered = collection.methods
    if collection.engine and not offered:
        if not (name or parameters):
            return EngineQuery()
        problem = f"{collection.engine} is ranked by its own query; leave it and `parameters` out"
    elif name not in (None, *METHODS):
        similar = did_you_mean(str(name), list(METHODS))
        problem = f"found {name!r}, expected one of {', '.join(METHODS)}{similar}"
    else:
        found: Method = apply_changes(
            METHODS[name or DEFAULT_METHOD](), parameters, "--parameter"
        )
        if found.name in offered or not collection.engine:
            return found
        problem = (
            f"found {found.name}, expected one of {', '.join(offered)}, which a search engine "
            "offers; search a local index (without an engine's address) for others"
        )
    raise UsageError(f"`first_stage`: {problem}")


def doc_ids_of(run: Run) -> list[str]:
    """Every post of a run once."""
    return list(dict.fromkeys(doc_id for scores in run.values() for doc_id in scores))
