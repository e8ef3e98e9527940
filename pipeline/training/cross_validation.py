"""Tune λ by cross-validation, and measure a model's gain on held-out topics.

On a user's collection, the candidates are those of the search's first stage. λ is tuned
on the scores of models that had not seen the topics. Each topic is measured with the λ
that was chosen on the other folds, so the figures can be expected on new topics.
"""

import dataclasses
import datetime
import itertools
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tweetrerank.indexes.data_error import DataError
from tweetrerank.pipeline.collections.collection import Collection
from tweetrerank.pipeline.collections.named import find, training_collections
from tweetrerank.pipeline.collections.trec import Qrels, Run, best_of, read_run
from tweetrerank.pipeline.defaults import DEFAULT_FUSION, DEFAULT_HITS
from tweetrerank.pipeline.evaluation.measures import Evaluator, mean
from tweetrerank.pipeline.evaluation.significance import print_comparison
from tweetrerank.pipeline.ranking.build import mixed, ranker
from tweetrerank.pipeline.ranking.checkpoints import ADAPTED_SUFFIX, load_model
from tweetrerank.pipeline.ranking.interpolation import (
    Calibration,
    ManyScores,
    Tuning,
    interpolate,
)
from tweetrerank.pipeline.ranking.retrievers import Candidates
from tweetrerank.pipeline.training.training_set import TrainingSet, own_training_set
from tweetrerank.pipeline.training.validation import Outcome
from tweetrerank.pipeline.usage_error import UsageError
from tweetrerank.rerankers import checkpoint as checkpoints
from tweetrerank.rerankers.logistic import logistic_regression
from tweetrerank.rerankers.model import Model

FEWEST = 10  # A gain counts only with this many held-out judged topics or more
HELD_OUT_FILE = "held_out.run.gz"
"""File in a checkpoint's folder with neural scores of the training topics. The scores
come from models that had not seen these topics."""

STEPS = 20  # Number of steps of λ from 0 to 1
SEED = 1  # Seed of the folds


@dataclass(frozen=True)
class HeldOut:
    """The first-stage and neural scores of held-out topics, and their judgments."""

    lexical: Run
    neural: Run
    qrels: Qrels
    collections: Sequence[str] = ()
    checkpoint: str = ""  # Checkpoint of the neural scores, ``<model>/<name>``
    first_stage: str = "official query-likelihood runs"

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Return the scores of several collections together.

        Each query_id gets the name of its collection as a prefix.
        """
        lexical: Run = {}
        neural: Run = {}
        qrels: Qrels = {}
        for part in parts:
            name = part.collections[0]
            lexical |= {f"{name}/{q}": scores for q, scores in part.lexical.items()}
            neural |= {f"{name}/{q}": scores for q, scores in part.neural.items()}
            qrels |= {f"{name}/{q}": grades for q, grades in part.qrels.items()}
        names = [part.collections[0] for part in parts]
        return cls(
            lexical, neural, qrels, names, parts[0].checkpoint, parts[0].first_stage
        )

    @classmethod
    def read(cls, checkpoint: Path, test: str, data: Path | None) -> Self:
        """Read a checkpoint's scores of held-out topics.

        ``test`` is the collection that was left out of the checkpoint's training.
        Raises DataError if there are no such scores, or if they are of other topics
        than those of the training collections.
        """
        test = find(test, data).name
        neural = read_held_out(checkpoint, f"--test {test}")
        names: list[str] = []
        lexical: Run = {}
        qrels: Qrels = {}
        for name in training_collections(test, data):
            collection = find(name, data)
            judgments = collection.qrels or {}
            topics = [query_id for query_id in judgments if query_id in neural]
            if topics:
                names.append(name)
                official = read_run(collection.runs["ql"])
                lexical |= {query_id: official[query_id] for query_id in topics}
                qrels |= {query_id: judgments[query_id] for query_id in topics}
        unknown = sorted(set(neural) - set(lexical))
        if unknown:
            raise DataError(
                f"{checkpoint / HELD_OUT_FILE}: found scores of topics "
                f"{', '.join(unknown[:3])} …, which belong to none of the collections "
                f"that {test} may be tuned on; name the checkpoint trained without it"
            )
        source = f"{checkpoint.parent.name}/{checkpoint.name}"
        return cls(lexical, neural, qrels, names, source)

    def tune(self, measure: str = "AP", folds: int = 5) -> Tuning:
        """Return the tuning with the λ that has the best mean over the judged topics.

        λ is taken from the grid 0, 0.05, … 1. If several weights are equally good, it
        is the middle of their longest stretch, which depends least on the topics at
        hand. Judged topics without results count as 0 for every λ.

        Raises UsageError if the measure is unknown, or if ``folds`` is below 2 or above
        the number of topics.
        """
        count = len(self.qrels)
        if not 2 <= folds <= count:
            raise UsageError(
                f"found {folds} folds, expected 2 to {count}, the number of topics"
            )
        values = self._grid(measure)
        topics = set(self.qrels)
        weights = []
        held_out = []
        for fold in fold_topics(self.qrels, folds, SEED):
            weight = _best(_curve(values, topics - set(fold)))
            weights.append(weight)
            held_out += [values[weight][query_id] for query_id in fold]
        curve = _curve(values, topics)
        return self._tuning(
            weight=_best(curve),
            curve=curve,
            cross_validated=mean(held_out),
            fold_weights=tuple(weights),
            measure=measure,
            normalization="minmax",
            folds=folds,
            seed=SEED,
        )

    def unmixed(self, measure: str, folds: int) -> Tuning:
        """Return the figures of a model that is not mixed by λ.

        Its scores are those of topics that were held out in folds.
        """
        evaluator = Evaluator(self.qrels, [measure])
        first = mean(evaluator(self.lexical)[measure])
        trained = mean(evaluator(self.neural)[measure])
        return self._tuning(
            weight=1.0,
            curve={0.0: first, 1.0: trained},
            cross_validated=trained,
            fold_weights=(),
            measure=measure,
            normalization="none",
            folds=folds,
            seed=0,
        )

    def _grid(self, measure: str) -> dict[float, dict[str, float]]:
        """Return λ -> query_id -> value of the measure for the mixture."""
        evaluator = Evaluator(self.qrels, [measure])
        lexical = {q: self.lexical[q] for q in evaluator.query_ids if q in self.lexical}
        values = {}
        for step in range(STEPS + 1):
            weight = step / STEPS
            mixture = interpolate(lexical, self.neural, weight)
            (values[weight],) = evaluator(mixture).values()
        return values

    def _tuning(self, **figures: Any) -> Tuning:
        """Return a tuning with these figures and with the origin of the scores."""
        return Tuning(
            **figures,
            topics=tuple(self.qrels),
            collections=tuple(self.collections),
            first_stage=self.first_stage,
            checkpoint=self.checkpoint,
            date=datetime.date.today().isoformat(),
            calibration=calibrate(self.neural, self.qrels),
        )


def _curve(
    values: Mapping[float, Mapping[str, float]], query_ids: set[str]
) -> dict[float, float]:
    """Return the mean value for each λ over the given topics."""
    return {
        weight: mean(by_topic[query_id] for query_id in query_ids)
        for weight, by_topic in values.items()
    }


def calibrate(scores: ManyScores, qrels: Qrels) -> Calibration | None:
    """Return the logistic calibration of the scores of judged topics.

    All topics have the same weight. Posts without a judgment count as not relevant.
    Returns None if no post or every post is relevant, or if relevant posts do not have
    higher scores.
    """
    values: list[list[float]] = []  # [P, 1]
    relevant: list[bool] = []
    weights: list[float] = []
    for query_id, grades in qrels.items():
        topic_scores = scores.get(query_id)
        if topic_scores:
            values += [[score] for score in topic_scores.values()]
            relevant += [grades.get(doc_id, 0) > 0 for doc_id in topic_scores]
            weights += [1 / len(topic_scores)] * len(topic_scores)
    if len(set(relevant)) < 2:
        return None
    # There is no regularisation, because it would depend on the scale of the scores.
    [slope], intercept = logistic_regression(values, relevant, weights)
    if slope > 0:
        return Calibration(round(float(slope), 6), round(intercept, 6))
    return None


def read_held_out(checkpoint: Path, training: str) -> Run:
    """Read the held-out scores in a checkpoint's folder.

    Raises DataError if there are none. Its message suggests to train with the options
    ``training``.
    """
    path = checkpoint / HELD_OUT_FILE
    if not path.exists():
        raise DataError(
            f"{path}: there are no scores of held-out topics; train again with "
            f"`python -m pipeline.train MODEL {training}`"
        )
    return read_run(path)


def fold_topics(query_ids: Iterable[str], folds: int, seed: int) -> list[list[str]]:
    """Return the query_ids in ``folds`` random parts.

    The parts do not depend on the order of ``query_ids``.
    """
    shuffled = sorted(query_ids)
    random.Random(seed).shuffle(shuffled)
    return [shuffled[number::folds] for number in range(folds)]


def cross_validated(lexical: Run, neural: Run, tuning: Tuning) -> Run:
    """Return the mixture of each topic by the λ that was chosen without its fold."""
    run: Run = {}
    folds = fold_topics(tuning.topics, tuning.folds, tuning.seed)
    for query_ids, weight in zip(folds, tuning.fold_weights, strict=True):
        fold_scores = {query_id: lexical[query_id] for query_id in query_ids}
        run |= interpolate(fold_scores, neural, weight)
    return run


def _best(curve: Mapping[float, float]) -> float:
    """Return the middle of the longest stretch of best weights.

    If the stretch has two middles, return the lower one.
    """
    # Equal means of different values, such as 1/30 and 2/30 or 3/30 and 0, may differ
    # in the last bit.
    limit = max(curve.values()) - 1e-12
    groups = itertools.groupby(curve, key=lambda weight: curve[weight] >= limit)
    stretches = [list(stretch) for is_best, stretch in groups if is_best]
    longest = max(stretches, key=len)
    return longest[(len(longest) - 1) // 2]


# Users' collections


def compare(
    collection: Collection, first_stage: TrainingSet, outcome: Outcome
) -> Tuning:
    """Return the tuning of a trained model, and print the rankings of held-out topics.

    λ is 0, which means the ranking without the model, if there are fewer than
    :data:`FEWEST` topics or if there is no gain. Otherwise λ is 1 for a model that is
    not mixed. ``first_stage`` holds the first stage's candidates, or a model's windows
    if the model reads lists.
    """
    model = outcome.model
    held_out = outcome.held_out_run
    judgments = collection.training_qrels or {}
    qrels = {q: grades for q, grades in judgments.items() if q in held_out}
    candidates = first_stage.training.candidates
    lexical = {query_id: candidates.run.get(query_id, {}) for query_id in qrels}
    topics = [topic for topic in candidates.topics if topic.query_id in qrels]
    candidates = dataclasses.replace(candidates, topics=topics, run=lexical)
    runs = _baselines(model, collection, candidates)
    measure = collection.measures[0]
    scores = HeldOut(
        lexical,
        held_out,
        qrels,
        [collection.name],
        f"{model.name}/{collection.name}",
        first_stage.candidates,
    )
    if model.reads == "posts":
        tuning = scores.tune(measure, folds=min(5, len(qrels)))
        trained = cross_validated(lexical, held_out, tuning)
        attempt = f"--reranker {model.name} --lambda {tuning.weight:g}"
    else:
        trained = best_of({q: held_out[q] for q in qrels}, DEFAULT_HITS)
        scores = dataclasses.replace(scores, neural=trained)
        tuning = scores.unmixed(measure, outcome.folds)
        attempt = "--checkpoint"
    runs[f"trained {model.name}"] = trained
    best = _print_rankings(runs, qrels, collection.measures)
    return without_gain(tuning, best, attempt)


def _print_rankings(
    runs: Mapping[str, Run], qrels: Qrels, measures: Sequence[str]
) -> float:
    """Print the measures of rankings.

    Return the best value of the first measure among all rankings but the last.
    """
    evaluator = Evaluator(qrels, measures)
    print(f"{len(qrels)} held-out topics:")
    figures = [(label, evaluator(run)) for label, run in runs.items()]
    print_comparison(figures)
    return max(mean(values[measures[0]]) for _, values in figures[:-1])


def _baselines(
    model: Model, collection: Collection, candidates: Candidates
) -> dict[str, Run]:
    """Return the rankings by the first stage, the shipped model and the shipped fusion.

    The fusion is left out if the model reads lists.
    """
    runs: dict[str, Run] = {}
    if model.reads == "lists":
        depth = max(map(len, candidates.run.values()), default=0)
        runs[f"first stage, best {depth}"] = candidates.run
    else:
        runs["first stage"] = candidates.run
        fusion = checkpoints.SHIPPED / DEFAULT_FUSION / "all"
        if collection.adapted_space:
            fusion = fusion.with_name(f"all{ADAPTED_SUFFIX}")
        if collection.methods and (fusion / "config.json").exists():
            default = ranker(collection, DEFAULT_FUSION, checkpoint=fusion)
            runs[f"shipped {DEFAULT_FUSION}"] = default.rank(candidates.topics).run
    label = f"shipped {model.name}"
    folder = checkpoints.SHIPPED / model.name / "all"
    if label not in runs and (folder / "config.json").exists():
        shipped = load_model(model.name, collection, folder)
        runs[label] = candidates.scored_by(mixed(shipped, has_scores=True))
    return runs


def without_gain(tuning: Tuning, without: float, attempt: str) -> Tuning:
    """Return the tuning, with λ set to 0 if the model's gain is not certain.

    The reason for λ = 0 is printed.

    Args:
        tuning: the tuning of a model.
        without: the best figure without the model.
        attempt: options of a search with the model, for the printed message.
    """
    topics = len(tuning.topics)
    if topics < FEWEST:
        reason = (
            f"found {topics} judged topics, expected {FEWEST} or more to trust a gain"
        )
    elif tuning.cross_validated <= without:
        reason = "no gain on held-out topics"
    else:
        return tuning
    print(
        f"{reason}: searches keep the ranking without it (λ = 0; try it by {attempt})"
    )
    return dataclasses.replace(tuning, weight=0.0)


def held_out_scores(
    model: str, collection: Collection, checkpoint: Path, most: int | None = None
) -> HeldOut:
    """Return the first-stage and neural scores of the topics to tune λ on.

    The neural scores are those of topics held out in the training. If the checkpoint
    was not trained on the collection, as a shipped one, it scores the topics now.

    Args:
        model: name of the model.
        collection: a user's collection.
        checkpoint: folder of the model.
        most: number of topics; None takes all.

    Raises:
        DataError: the topics or posts have changed since the training.
    """
    data = own_training_set(collection, most)
    candidates = data.training.candidates
    metrics = checkpoints.load(checkpoint, model).metrics
    if collection.name in metrics.get("trained_on", []):
        neural = read_held_out(checkpoint, f"--collection {collection.title}")
    else:
        neural = candidates.scored_by(load_model(model, collection, checkpoint))
    lexical = {q: scores for q, scores in candidates.run.items() if q in neural}
    has_gaps = any(scores.keys() - neural[q].keys() for q, scores in lexical.items())
    if has_gaps or len(lexical) < 2:
        raise DataError(
            f"{checkpoint}: its scores of held-out topics are not of these topics and "
            "posts, which have changed since; train again with "
            f"`python -m pipeline.train {model} --collection {collection.title}`"
        )
    return HeldOut(
        lexical,
        neural,
        {query_id: data.training.qrels[query_id] for query_id in lexical},
        [collection.name],
        f"{model}/{checkpoint.name}",
        data.candidates,
    )
