"""Build training sets: judged candidates, and the texts of the vocabulary."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
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
from tweetrerank.rerankers.pairs import NUMBER
from tweetrerank.rerankers.text.ragged import Rows

DRAWN = 5  # Number of wrong answers for each right one in :func:`draw_answers`

UNJUDGED = 10
"""With click logs, one in this number of the posts that no user saw is trained on.
Without any of these posts, a model would learn nothing about posts that users did not
see. With all of them, the relevant ones among them would outweigh the clicked ones. In
a test where users see ten posts, training on the judgments of these posts gave 85, 97
and 77 % of the gain from all judgments on SemEval (with none, every tenth, and all of
the other posts), and 101, 115 and 111 % on Twitter URL."""


@dataclass(frozen=True)
class JudgedCandidates:
    """The candidates of several collections, and their judgments."""

    candidates: Candidates
    qrels: Qrels
    # Whether judgments come from clicks; see :meth:`to_train`
    judged_only: bool = False
    groups: Sequence[str] = ()  # Collection of each topic, if known
    twins: Sequence[str] = ()
    """For each topic, the original topic that it is a form of. All forms of a topic are
    held out together."""
    wholes: Sequence[str] = ()
    """For each topic, the list that its candidates are a part of, if they are parts."""

    def relevant(self) -> npt.NDArray[np.bool_]:
        """Return whether each candidate is relevant, as [P].

        Posts without a judgment count as not relevant.
        """
        return np.array(
            [
                self.qrels.get(query_id, {}).get(doc_id, 0) > 0
                for query_id, doc_id in self.candidates.keys()  # noqa: SIM118
            ]
        )

    def to_train(self, rows: Rows) -> Rows:
        """Return those of ``rows`` to train on.

        With ``judged_only``, these are the pairs with a judgment, and one in
        :data:`UNJUDGED` of the other pairs, which then count as not relevant. Otherwise
        they are all rows.
        """
        if not self.judged_only:
            return rows
        keys = self.candidates.keys()
        is_trained_on = []
        for row in rows.tolist():
            query_id, doc_id = keys[row]
            is_judged = doc_id in self.qrels.get(query_id, ())
            is_drawn = crc32(f"{query_id} {doc_id}".encode()) % UNJUDGED == 0
            is_trained_on.append(is_judged or is_drawn)
        return rows[np.array(is_trained_on, dtype=np.bool_)]

    def run_of(self, rows: Rows, scores: npt.NDArray[np.float32]) -> Run:
        """Return the scores [B] of the pairs ``rows`` [B] as a run.

        Topics without any of these pairs are left out.
        """
        keys = self.candidates.keys()
        run: Run = {}
        for row, score in zip(rows.tolist(), scores.tolist(), strict=True):
            query_id, doc_id = keys[row]
            run.setdefault(query_id, {})[doc_id] = score
        return run

    def mean_of(self, measure: str, run: Run) -> float:
        """Return the mean of a measure over the judged topics of ``run``.

        Without such topics, it is 0.
        """
        qrels = {
            query_id: self.qrels[query_id] for query_id in run if query_id in self.qrels
        }
        return mean(evaluate(qrels, run, [measure])[measure]) if qrels else 0.0


@dataclass(frozen=True)
class TrainingSet:
    """Judged candidates to train a model on, and the texts of its vocabulary."""

    trained_on: Sequence[str]  # Names of the collections
    left_out: str | None  # The microblog collection that is not trained on
    candidates: str  # Where the candidates come from, for reports
    training: JudgedCandidates
    development: JudgedCandidates | None = None
    """The part that ends the training early. With None, topics are held out instead."""
    texts: Sequence[str] = ()
    """Texts from which a network's vocabulary is built. They do not depend on
    judgments."""


def microblog_training_set(
    test: str | None,
    data: Path | None,
    years: Sequence[str] = (),
    prior_runs: Sequence[Path] = (),
    top: int | None = None,
) -> TrainingSet:
    """Return the official query-likelihood candidates of judged microblog years.

    The prior of a candidate is a mean over several runs (Severyn and Moschitti 2015,
    section 5).

    Args:
        test: the year to leave out.
        data: the data folder.
        years: the years to train on. The default is all judged years but ``test``.
        prior_runs: runs of the priors. The default is the official runs. Each
            collection reads the runs that have results for its topics.
        top: how many of these runs to read, the best by P@30. None reads all.
    """
    names = _years(test, data, years)
    origin = "official query-likelihood runs"
    if prior_runs:
        origin += f", priors of the best of {len(prior_runs)} runs"
    collections = [named.find(name, data) for name in names]
    return TrainingSet(
        names,
        named.find(test, data).name if test else None,
        origin,
        _of_years(collections, prior_runs, top),
        texts=_microblog_texts(data),
    )


def _years(test: str | None, data: Path | None, years: Sequence[str]) -> list[str]:
    """Return the names of the collections to train on.

    Raises UsageError if one of them is not a judged collection, or is ``test``.
    """
    # Unknown names are reported before missing data.
    chosen = list(dict.fromkeys(named.find(year, data).name for year in years))
    judged = named.training_collections(test, data)
    wrong = [name for name in chosen if name not in judged]
    if wrong:
        exception = f" other than {test}" if test else ""
        raise UsageError(
            f"--train-on: found {listed(wrong)}, expected some of "
            f"{', '.join(judged)}, the judged collections{exception}"
        )
    return chosen or judged


def _microblog_texts(data: Path | None) -> list[str]:
    """Return the text of each microblog post once."""
    # Collections of one group share their posts.
    groups: dict[str, Collection] = {}
    for name in named.names():
        if name.startswith("mb"):
            collection = named.find(name, data)
            if collection.index and not collection.missing():
                groups[collection.index.group] = collection
    texts: dict[str, str] = {}
    for collection in groups.values():
        for post in collection.posts():
            texts[post.doc_id] = post.text
    return list(texts.values())


def _of_years(
    collections: Sequence[Collection], prior_runs: Sequence[Path], top: int | None
) -> JudgedCandidates:
    """Return the official candidates of microblog years, with their priors."""
    topics: list[Topic] = []
    groups: list[str] = []
    posts: dict[str, Post] = {}
    run: Run = {}
    priors: Run = {}
    qrels: Qrels = {}
    for collection in collections:
        path = collection.runs["ql"]
        judged_topics = collection.training_topics
        retriever = RunRetriever(read_run(path), collection.find_posts, str(path))
        candidates = retriever.search(judged_topics)
        topics += judged_topics
        groups += [collection.name] * len(judged_topics)
        run |= candidates.run
        posts |= candidates.posts
        qrels |= collection.qrels or {}
        paths = prior_runs or list(collection.runs.values())
        priors |= priors_of(_best_runs(paths, collection, top))
    return JudgedCandidates(
        Candidates(topics, run, posts, priors), qrels, groups=groups
    )


def _best_runs(
    paths: Sequence[Path], collection: Collection, top: int | None
) -> list[Run]:
    """Return the runs with results for judged topics, sorted by P@30, best first.

    At most ``top`` runs are returned, restricted to these topics. Raises DataError if
    there are none.
    """
    judgments = collection.qrels or {}
    runs = []
    for path in paths:
        run = read_run(path)
        judged_run = {
            query_id: run[query_id] for query_id in run if query_id in judgments
        }
        if judged_run:
            runs.append(judged_run)
    if not runs:
        raise DataError(
            f"--prior-runs: found no results for the topics of {collection.name} in "
            f"{listed([str(path) for path in paths])}, expected at least one run of "
            "them"
        )

    def precision(run: Run) -> float:
        return mean(evaluate(judgments, run, ["P@30"])["P@30"])

    return sorted(runs, key=lambda run: -precision(run))[:top]


def load_answers(part: Collection) -> JudgedCandidates:
    """Return the candidates and judgments of one part of an answer collection.

    Raises DataError if there are no judgments.
    """
    posts = {post.doc_id: post for post in part.posts()}
    if part.qrels is None:
        raise DataError(f"{part.missing_judgments}; training needs them")
    candidates = Candidates(part.topics, part.given_candidates or {}, posts, {})
    return JudgedCandidates(candidates, part.qrels)


def draw_answers(part: Collection, repeats: int = 3) -> JudgedCandidates:
    """Return each right answer of a part among :data:`DRAWN` other answers.

    The other answers belong to other questions, and a model has to pick the right one
    (Qiu and Huang, IJCAI 2015, section 6.2). Each right answer is drawn with
    ``repeats`` sets of other answers, and each draw is a topic. Draws are the same at
    every call. The query_id of a draw is that of the question with a number. Answers
    with the same text as the right one are not drawn. Raises DataError if there are too
    few answers.
    """
    answers = load_answers(part)
    posts = answers.candidates.posts
    right = _right_answers(part, answers.qrels)
    rng = np.random.default_rng(1)
    topics: list[Topic] = []
    run: Run = {}
    qrels: Qrels = {}
    for topic, answer in right:
        text = posts[answer].text
        others = [
            doc_id
            for question, doc_id in right
            if question.query_id != topic.query_id and posts[doc_id].text != text
        ]
        if len(others) < DRAWN:
            raise DataError(
                f"{part.name}: found {len(others)} right answers besides those of "
                f"question {topic.query_id}, expected at least {DRAWN} to draw from"
            )
        for _ in range(repeats):
            query_id = f"{topic.query_id}/{len(topics)}"
            topics.append(Topic(query_id, topic.text))
            drawn = rng.choice(len(others), DRAWN, replace=False)
            run[query_id] = {answer: 0.0}
            run[query_id] |= {others[row]: 0.0 for row in drawn}
            qrels[query_id] = {answer: 1}
    return JudgedCandidates(Candidates(topics, run, posts, {}), qrels)


def _right_answers(part: Collection, qrels: Qrels) -> list[tuple[Topic, str]]:
    """Return (question, doc_id) for each right answer of each question."""
    right = []
    for topic in part.topics:
        for doc_id, relevance in qrels.get(topic.query_id, {}).items():
            if relevance > 0:
                right.append((topic, doc_id))
    return right


def answer_training_set(collection: Collection, draws: bool = False) -> TrainingSet:
    """Return the training set of a collection with given answers.

    It has the training and the development part, and the texts of all parts. With
    ``draws``, the development part is made by :func:`draw_answers`.
    """
    training = collection.part("train")
    development = collection.part("dev")
    texts: list[str] = []
    for part in (training, development, collection.part("test")):
        texts += [topic.text for topic in part.topics]
        texts += [post.text for post in part.posts()]
    load_development = draw_answers if draws else load_answers
    judged_development = load_development(development)
    return TrainingSet(
        [collection.name],
        None,
        "given candidates",
        load_answers(training),
        judged_development,
        texts,
    )


def own_training_set(collection: Collection, most: int | None = None) -> TrainingSet:
    """Return the first stage's candidates for the judged topics of a user's collection.

    ``most`` is the number of topics, and None takes all. Raises DataError if there are
    no judgments, if there are fewer than two topics, or if no candidate has a number
    that the collection names.
    """
    judgments = collection.training_qrels
    if judgments is None:
        raise DataError(f"{collection.missing_judgments}; training needs them")
    topics = collection.training_topics
    if len(topics) < 2:
        where = f"in {collection.train_topics} " if collection.train_topics else ""
        raise DataError(
            f"{collection.title}: found {counted(len(topics), 'judged topic')} {where}"
            "to train on, expected at least 2: one to train on while the other is held "
            "out"
        )
    collection.check_judged_posts()
    retriever = retriever_for(collection)
    candidates = retriever.search(topics[:most], DEFAULT_HITS)
    _check_numbers(collection, candidates)
    return TrainingSet(
        [collection.name],
        None,
        f"best {DEFAULT_HITS} by {retriever.name}",
        JudgedCandidates(candidates, judgments, collection.judged_only),
    )


def _check_numbers(collection: Collection, candidates: Candidates) -> None:
    """Raise DataError if a named field of numbers is missing in all candidates."""
    if not collection.signals:
        return
    signals = candidates.pairs().signals
    for name in collection.signals:
        values = signals.get(NUMBER + name)
        if values is None or np.isnan(values).all():
            raise DataError(
                f"{collection.title}: found no number under {name} in the "
                f"{len(candidates.posts):,} candidates, expected some; correct "
                "`signals`, or build the index again"
            )
