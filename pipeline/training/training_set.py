"""Training sets: judged candidates, the texts of the vocabulary, and validation.

A collection with a development part is trained on its training part and judged by the development
part. Elsewhere validation is by topic. With K folds each topic is held out once, its scores are
those of a model that has not seen its judgments, and the model that is kept is trained on all
topics. With one fold, a share of the topics is held out once and that model is kept.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import numpy.typing as npt

from tweetrerank.indexes.data_error import DataError
from tweetrerank.indexes.posts import Post
from tweetrerank.pipeline.collections import named
from tweetrerank.pipeline.collections.collection import Collection
from tweetrerank.pipeline.collections.topics import Topic
from tweetrerank.pipeline.collections.trec import Qrels, Run, read_run
from tweetrerank.pipeline.defaults import DEFAULT_HITS
from tweetrerank.pipeline.evaluation.measures import evaluate, mean
from tweetrerank.pipeline.ranking.retrievers import (
    Candidates,
    RunRetriever,
    priors_of,
    retriever_for,
)
from tweetrerank.pipeline.text import counted, listed
from tweetrerank.pipeline.usage_error import UsageError
from tweetrerank.rerankers.networks.training.settings import Settings
from tweetrerank.rerankers.pairs import NUMBER
from tweetrerank.rerankers.reranker import Model
from tweetrerank.rerankers.text.ragged import Rows
from tweetrerank.rerankers.text.vocabulary import Idf

DRAWN = (
    5  # Answers of other questions among which :func:`draw_answers` hides the right one
)

UNJUDGED = 10
"""Without any post that nobody was shown, a model knows nothing of those; with all, the relevant
ones among them count for more than the clicked ones. Where users see ten posts, the judgments of
these gave 85, 97 and 77 % of the gain of all judgments with none, every tenth and all of the others
(SemEval), and 101, 115 and 111 % (Twitter URL)."""


@dataclass(frozen=True)
class JudgedCandidates:
    """Candidates of several collections and their judgments."""

    candidates: Candidates
    qrels: Qrels
    judged_only: bool = False  # Judgments are of clicks: see :meth:`to_train`
    groups: Sequence[str] = ()  # The collection of each topic, if it is known
    twins: Sequence[
        str
    ] = ()  # The topic that each one is a form of; they are held out together
    wholes: Sequence[
        str
    ] = ()  # The list that each topic's candidates are a part of, if they are

    def relevant(self) -> npt.NDArray[np.bool_]:
        """[P] whether each candidate is relevant; posts without a judgment are not."""
        return np.array(
            [self.qrels.get(q, {}).get(d, 0) > 0 for q, d in self.candidates.keys()]  # noqa: SIM118
        )

    def to_train(self, rows: Rows) -> Rows:
        """The rows of pairs that a model is trained on: with ``judged_only`` those with a judgment,
        and every :data:`UNJUDGED` th of the others as if it were not relevant."""
        if not self.judged_only:
            return rows
        keys = self.candidates.keys()
        kept = [
            doc_id in self.qrels.get(query_id, ())
            or not crc32(f"{query_id} {doc_id}".encode()) % UNJUDGED
            for query_id, doc_id in map(keys.__getitem__, rows.tolist())
        ]
        return rows[np.array(kept, dtype=np.bool_)]

    def run_of(self, rows: Rows, scores: npt.NDArray[np.float32]) -> Run:
        """The scores [B] of the pairs ``rows`` [B] as a run."""
        keys, run = self.candidates.keys(), Run()
        for row, score in zip(rows.tolist(), scores.tolist(), strict=True):
            query_id, doc_id = keys[row]
            run.setdefault(query_id, {})[doc_id] = score
        return run

    def mean_of(self, measure: str, run: Run) -> float:
        """Mean of a measure over the judged topics of ``run``."""
        qrels = {
            query_id: self.qrels[query_id] for query_id in run if query_id in self.qrels
        }
        return mean(evaluate(qrels, run, [measure])[measure]) if qrels else 0.0


@dataclass(frozen=True)
class TrainingSet:
    """Judged candidates to train a model on, and the texts of its vocabulary."""

    trained_on: Sequence[str]  # Names of the collections
    left_out: str | None  # The microblog collection that was left out, if any
    candidates: str  # Origin of the candidates, for reports
    training: JudgedCandidates
    development: JudgedCandidates | None = (
        None  # Ends the training; None holds out topics
    )
    texts: Sequence[
        str
    ] = ()  # Texts of a network's vocabulary; no judgment chooses them


def microblog_training_set(
    test: str | None,
    data: Path | None,
    years: Sequence[str] = (),
    prior_runs: Sequence[Path] = (),
    top: int | None = None,
) -> TrainingSet:
    """The official query-likelihood candidates of judged microblog years, with all posts' words.

    ``years`` are by default all judged ones but ``test``. A candidate's prior is the mean over
    ``prior_runs`` with results for its collection's topics, ``top`` of them, those with the best
    P@30 (Severyn & Moschitti 2015, section 5); by default over all official runs of its collection.
    """
    # Unknown names come before missing data.
    trained_on = list(dict.fromkeys(named.find(year, data).name for year in years))
    judged = named.training_collections(test, data)
    trained_on = trained_on or judged
    if wrong := [name for name in trained_on if name not in judged]:
        raise UsageError(
            f"--train-on: found {listed(wrong)}, expected some of {', '.join(judged)}, the judged "
            "collections" + (f" other than {test}" if test else "")
        )
    origin = f", priors of the best of {len(prior_runs)} runs" if prior_runs else ""
    known = (named.find(name, data) for name in named.names() if name.startswith("mb"))
    # Collections of a group share their posts.
    groups = {
        each.index.group: each for each in known if each.index and not each.missing()
    }
    texts = {
        post.doc_id: post.text for group in groups.values() for post in group.posts()
    }
    return TrainingSet(
        trained_on,
        named.find(test, data).name if test else None,
        f"official query-likelihood runs{origin}",
        _of_years([named.find(name, data) for name in trained_on], prior_runs, top),
        texts=list(texts.values()),
    )


def _of_years(
    collections: Sequence[Collection], prior_runs: Sequence[Path], top: int | None
) -> JudgedCandidates:
    topics, groups, posts = list[Topic](), list[str](), dict[str, Post]()
    run, priors, qrels = Run(), Run(), Qrels()
    for collection in collections:
        path, judged = collection.runs["ql"], collection.training_topics
        found = RunRetriever(read_run(path), collection.find_posts, str(path)).search(
            judged
        )
        topics += judged
        groups += [collection.name] * len(judged)
        run |= found.run
        posts |= found.posts
        qrels |= collection.qrels or {}
        official = list(collection.runs.values())
        priors |= priors_of(_best_runs(prior_runs or official, collection, top))
    return JudgedCandidates(
        Candidates(topics, run, posts, priors), qrels, groups=groups
    )


def _best_runs(
    paths: Sequence[Path], collection: Collection, top: int | None
) -> list[Run]:
    """The runs with results for a collection's judged topics, those with the best P@30 first."""
    judgments = collection.qrels or {}
    found = (
        {q: of for q, of in read_run(path).items() if q in judgments} for path in paths
    )
    if not (runs := [run for run in found if run]):
        raise DataError(
            f"--prior-runs: found no results for the topics of {collection.name} in "
            f"{listed([str(path) for path in paths])}, expected at least one run of them"
        )
    return sorted(
        runs, key=lambda run: -mean(evaluate(judgments, run, ["P@30"])["P@30"])
    )[:top]


def load_answers(part: Collection) -> JudgedCandidates:
    """The given candidates and the judgments of one part of an answer-selection collection."""
    posts = {post.doc_id: post for post in part.posts()}
    if part.qrels is None:
        raise DataError(f"{part.missing_judgments}; training needs them")
    found = Candidates(part.topics, part.given_candidates or {}, posts, {})
    return JudgedCandidates(found, part.qrels)


def draw_answers(part: Collection, repeats: int = 3) -> JudgedCandidates:
    """Each right answer of a part, ``repeats`` times with :data:`DRAWN` of other questions. A model
    is to pick the right one (Qiu & Huang, IJCAI 2015, section 6.2). A topic is one draw, always the
    same; its query_id is the question's with a number. An answer with the text of the right one is
    not drawn."""
    known = load_answers(part)
    posts = known.candidates.posts
    right = [
        (topic, doc_id)
        for topic in part.topics
        for doc_id, relevance in known.qrels.get(topic.query_id, {}).items()
        if relevance > 0
    ]
    rng, topics, run, qrels = np.random.default_rng(1), list[Topic](), Run(), Qrels()
    for topic, answer in right:
        others = [
            doc_id
            for asked, doc_id in right
            if asked.query_id != topic.query_id
            and posts[doc_id].text != posts[answer].text
        ]
        if len(others) < DRAWN:
            raise DataError(
                f"{part.name}: found {len(others)} right answers besides those of question "
                f"{topic.query_id}, expected at least {DRAWN} to draw from"
            )
        for _ in range(repeats):
            query_id = f"{topic.query_id}/{len(topics)}"
            topics.append(Topic(query_id, topic.text))
            drawn = rng.choice(len(others), DRAWN, replace=False)
            run[query_id] = dict.fromkeys(
                [answer, *(others[row] for row in drawn)], 0.0
            )
            qrels[query_id] = {answer: 1}
    return JudgedCandidates(Candidates(topics, run, posts, {}), qrels)


def answer_training_set(collection: Collection, draws: bool = False) -> TrainingSet:
    """The training and development parts of ``collection``, and the words of all its parts. With
    ``draws``, the development part is that of :func:`draw_answers`."""
    parts = [collection.part(name) for name in ("train", "dev", "test")]
    texts: list[str] = []
    for part in parts:
        texts += [topic.text for topic in part.topics] + [
            post.text for post in part.posts()
        ]
    development = draw_answers(parts[1]) if draws else load_answers(parts[1])
    of_parts = load_answers(parts[0]), development, texts
    return TrainingSet([collection.name], None, "given candidates", *of_parts)


def own_training_set(collection: Collection, most: int | None = None) -> TrainingSet:
    """The first stage's candidates of the judged topics of an own collection, ``most`` of them."""
    if (judgments := collection.training_qrels) is None:
        raise DataError(f"{collection.missing_judgments}; training needs them")
    if len(topics := collection.training_topics) < 2:
        where = f"in {collection.train_topics} " if collection.train_topics else ""
        raise DataError(
            f"{collection.title}: found {counted(len(topics), 'judged topic')} {where}to train on, "
            "expected at least 2: one to train on while the other is held out"
        )
    collection.check_judged_posts()
    retriever = retriever_for(collection)
    candidates = retriever.search(topics[:most], DEFAULT_HITS)
    for name in collection.signals:
        if np.isnan(
            candidates.pairs().signals.get(NUMBER + name, np.array([np.nan]))
        ).all():
            raise DataError(
                f"{collection.title}: found no number under {name} in the {len(candidates.posts):,}"
                " candidates, expected some; correct `signals`, or build the index again"
            )
    lists = JudgedCandidates(candidates, judgments, collection.judged_only)
    return TrainingSet(
        [collection.name], None, f"best {DEFAULT_HITS} by {retriever.name}", lists
    )


# Validation


class Plan(NamedTuple):
    """A training: a model with its settings, and what it is trained on."""

    model: str  # Its name
    settings: Settings
    folds: int  # Folds of topics, without a development part
    idf: Idf
    configuration: str | None  # Its name; None is the model's first one
    config: Any  # With the changes of ``--set``
    data: TrainingSet
    first_stage: TrainingSet  # Baseline of a model trained on an own collection
    start: Path | None = None  # Checkpoint of trees that are extended


Fit = Callable[
    [str, Rows, JudgedCandidates, Rows], tuple[Model, npt.NDArray[np.float32]]
]
"""Name of a part, rows to train on, candidates with rows that are held out, perhaps none -> a
model, and its scores of the latter."""


@dataclass(frozen=True)
class Outcome:
    """A trained model with its validation figures."""

    model: Model
    held_out_run: Run  # Scores of held-out topics by models that had not seen them
    validation_map: Mapping[str, float]  # Fold -> MAP of its held-out topics
    folds: int  # Folds of topics; 0 with a development part
    record: Mapping[str, Any]  # Facts of the training, for ``metrics.json``


def validated(plan: Plan, record: Mapping[str, Any], fit: Fit) -> Outcome:
    """Train by ``fit`` on the parts of a training set."""
    data, run, figures = plan.data.training, Run(), dict[str, float]()
    settings, folds = plan.settings, plan.folds
    every = np.arange(len(data.candidates))

    def judged(part: str, rows: Rows, known: JudgedCandidates, others: Rows) -> Model:
        model, scores = fit(part, data.to_train(rows), known, others)
        found = known.run_of(others, scores)
        run.update(found)
        figures["development" if known is not data else part] = known.mean_of(
            "AP", found
        )
        return model

    if known := plan.data.development:
        model = judged("training", every, known, np.arange(len(known.candidates)))
        return Outcome(model, run, figures, 0, record)
    query_index = data.candidates.texts.query_index
    groups = data.groups if settings.held_out_of == "each" else ()
    parts = split_topics(
        query_index, folds, settings.seed, settings.held_out, groups, data.twins
    )
    for number, is_held_out in enumerate(parts, start=1):
        rows, others = np.flatnonzero(~is_held_out), np.flatnonzero(is_held_out)
        model = judged(f"fold {number}", rows, data, others)
    if folds > 1:
        model, _ = fit("all topics", data.to_train(every), data, every[:0])
    return Outcome(model, run, figures, folds, record)


def split_topics(
    query_index: Rows,
    count: int,
    seed: int,
    share: float = 0.15,
    groups: Sequence[str] = (),
    twins: Sequence[str] = (),
) -> list[npt.NDArray[np.bool_]]:
    """[P] whether pairs are held out, for each of ``count`` folds of topics. One fold holds out a
    ``share`` of the topics, with ``groups`` [Q] of each group's. Queries of the same name in
    ``twins`` [Q] are one topic."""
    if twins:
        query_index = np.unique(twins, return_inverse=True)[1][query_index]
    queries = np.random.default_rng(seed).permutation(np.unique(query_index))
    if count > 1:
        return [np.isin(query_index, part) for part in np.array_split(queries, count)]
    group_of = np.array([groups[query] if groups else "" for query in queries.tolist()])
    parts = [queries[group_of == name] for name in np.unique(group_of)]
    shares = [part[: max(1, round(share * len(part)))] for part in parts]
    return [np.isin(query_index, np.concatenate(shares))]
