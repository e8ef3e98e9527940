"""λ, tuned by cross-validation on held-out training topics, and whether a model pays on these.

On an own collection candidates are those of the search's first stage. λ is tuned on scores of
models that had not seen the topics, and each topic is measured with the λ of the other folds, so
the figures are those to expect on new topics.
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
from tweetrerank.pipeline.training.training_set import (
    Outcome,
    TrainingSet,
    own_training_set,
)
from tweetrerank.pipeline.usage_error import UsageError
from tweetrerank.rerankers import checkpoint as checkpoints
from tweetrerank.rerankers.logistic import logistic_regression
from tweetrerank.rerankers.model import Model

FEWEST = 10  # Judged topics from which on a gain on held-out ones counts
HELD_OUT_FILE = "held_out.run.gz"
"""In a checkpoint's folder: neural scores of training topics by models that had not seen them."""

STEPS = 20  # Steps of λ, from 0 to 1
SEED = 1  # Seed of the folds


@dataclass(frozen=True)
class HeldOut:
    """First-stage and neural scores of held-out training topics, and their judgments."""

    lexical: Run
    neural: Run
    qrels: Qrels
    collections: Sequence[str] = ()
    checkpoint: str = ""  # Source of the neural scores, ``<model>/<name>``
    first_stage: str = "official query-likelihood runs"

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """The scores of several collections, with its name before each query_id."""
        names = [part.collections[0] for part in parts]

        def joined(field: str) -> dict[str, Any]:
            named = zip(names, (getattr(part, field) for part in parts), strict=True)
            return {
                f"{name}/{q}": scores
                for name, run in named
                for q, scores in run.items()
            }

        lexical, neural, qrels = map(joined, ("lexical", "neural", "qrels"))
        return cls(
            lexical, neural, qrels, names, parts[0].checkpoint, parts[0].first_stage
        )

    @classmethod
    def read(cls, checkpoint: Path, test: str, data: Path | None) -> Self:
        """Read a checkpoint's scores of held-out topics; ``test`` was left out of its training."""
        test = find(test, data).name
        neural, path = (
            read_held_out(checkpoint, f"--test {test}"),
            checkpoint / HELD_OUT_FILE,
        )
        names, lexical, qrels = list[str](), Run(), Qrels()
        for name in training_collections(test, data):
            collection = find(name, data)
            judgments = collection.qrels or {}
            if topics := [query_id for query_id in judgments if query_id in neural]:
                names.append(name)
                official = read_run(collection.runs["ql"])
                lexical |= {query_id: official[query_id] for query_id in topics}
                qrels |= {query_id: judgments[query_id] for query_id in topics}
        if unknown := sorted(set(neural) - set(lexical)):
            raise DataError(
                f"{path}: found scores of topics {', '.join(unknown[:3])} …, which belong to none "
                f"of the collections that {test} may be tuned on; name the checkpoint trained "
                "without it"
            )
        return cls(
            lexical, neural, qrels, names, f"{checkpoint.parent.name}/{checkpoint.name}"
        )

    def tune(self, measure: str = "AP", folds: int = 5) -> Tuning:
        """The λ of the grid 0, 0.05, … 1 with the best mean over all judged topics.

        Among equally good weights the middle of their longest stretch is taken, the one least
        sensitive to the topics at hand. Judged topics without results count as 0, whatever λ.

        Raises UsageError for more folds than topics or fewer than 2, or an unknown measure.
        """
        if not 2 <= folds <= (count := len(self.qrels)):
            raise UsageError(
                f"found {folds} folds, expected 2 to {count}, the number of topics"
            )
        evaluator = Evaluator(self.qrels, [measure])
        first = {q: self.lexical[q] for q in evaluator.query_ids if q in self.lexical}
        values: dict[float, dict[str, float]] = {}  # λ -> query_id -> measure
        for weight in (part / STEPS for part in range(STEPS + 1)):
            (values[weight],) = evaluator(
                interpolate(first, self.neural, weight)
            ).values()

        def curve(query_ids: set[str]) -> dict[float, float]:
            return {
                weight: mean(of[q] for q in query_ids) for weight, of in values.items()
            }

        topics, parts = set(self.qrels), fold_topics(self.qrels, folds, SEED)
        weights = [_best(curve(topics - set(fold))) for fold in parts]
        held_out = [
            values[w][q] for w, fold in zip(weights, parts, strict=True) for q in fold
        ]
        found = curve(topics)
        of_folds = mean(held_out), tuple(weights), measure, "minmax", folds, SEED
        return Tuning(_best(found), found, *of_folds, *self._provenance())

    def unmixed(self, measure: str, folds: int) -> Tuning:
        """The figures of a model without λ, whose scores of topics held out in folds are these."""
        evaluator = Evaluator(self.qrels, [measure])
        first, trained = (
            mean(evaluator(run)[measure]) for run in (self.lexical, self.neural)
        )
        figures = {0.0: first, 1.0: trained}, trained, (), measure, "none", folds, 0
        return Tuning(1.0, *figures, *self._provenance())

    def _provenance(self) -> tuple[Any, ...]:
        """The fields of a tuning from its topics to the calibration of the neural scores."""
        today, calibration = datetime.date.today(), calibrate(self.neural, self.qrels)
        source = self.first_stage, self.checkpoint, today.isoformat(), calibration
        return tuple(self.qrels), tuple(self.collections), *source


def calibrate(scores: ManyScores, qrels: Qrels) -> Calibration | None:
    """The logistic calibration of judged topics' scores, with the same weight for each topic. Posts
    without a judgment count as not relevant. None if relevant posts do not have higher scores, or
    there are none."""
    topics = [query_id for query_id in qrels if scores.get(query_id)]
    values = [score for query_id in topics for score in scores[query_id].values()]
    relevant = [qrels[q].get(doc_id, 0) > 0 for q in topics for doc_id in scores[q]]
    if len(set(relevant)) < 2:
        return None
    weights = [
        1 / len(scores[query_id]) for query_id in topics for _ in scores[query_id]
    ]
    # Without regularisation, which would depend on the scores' scale.
    [slope], intercept = logistic_regression(
        [[value] for value in values], relevant, weights
    )
    return (
        Calibration(round(float(slope), 6), round(intercept, 6)) if slope > 0 else None
    )


def read_held_out(checkpoint: Path, training: str) -> Run:
    """The scores in a checkpoint's folder, which are written with the options ``training``."""
    if not (path := checkpoint / HELD_OUT_FILE).exists():
        raise DataError(
            f"{path}: there are no scores of held-out topics; train again with "
            f"`python -m pipeline.train MODEL {training}`"
        )
    return read_run(path)


def fold_topics(query_ids: Iterable[str], folds: int, seed: int) -> list[list[str]]:
    """The query_ids in ``folds`` random parts, the same whatever their order."""
    shuffled = sorted(query_ids)
    random.Random(seed).shuffle(shuffled)
    return [shuffled[number::folds] for number in range(folds)]


def cross_validated(lexical: Run, neural: Run, tuning: Tuning) -> Run:
    """The mixture of each topic by the λ that was chosen without its fold."""
    found: Run = {}
    folds = fold_topics(tuning.topics, tuning.folds, tuning.seed)
    for query_ids, weight in zip(folds, tuning.fold_weights, strict=True):
        found |= interpolate({q: lexical[q] for q in query_ids}, neural, weight)
    return found


def _best(curve: Mapping[float, float]) -> float:
    """The middle of the longest stretch of best weights, the lower one of two middles."""
    # Equal means of different values, 1/30 and 2/30 or 3/30 and 0, may differ in the last bit.
    limit = max(curve.values()) - 1e-12
    groups = itertools.groupby(curve, key=lambda weight: curve[weight] >= limit)
    stretches = [list(stretch) for is_best, stretch in groups if is_best]
    longest = max(stretches, key=len)
    return longest[(len(longest) - 1) // 2]


# Own collections


def compare(
    collection: Collection, first_stage: TrainingSet, outcome: Outcome
) -> Tuning:
    """The tuning of a trained model; prints the rankings of the held-out topics beside each other.
    λ is 0, the ranking without the model, if there are fewer than :data:`FEWEST` topics or no gain;
    else it is 1 for a model that is not mixed. ``first_stage`` has the first stage's candidates, a
    model's windows if it reads lists."""
    found, held_out = first_stage.training.candidates, outcome.held_out_run
    judgments, measure = collection.training_qrels or {}, collection.measures[0]
    qrels = {q: grades for q, grades in judgments.items() if q in held_out}
    first = {query_id: found.run.get(query_id, {}) for query_id in qrels}
    topics = [topic for topic in found.topics if topic.query_id in qrels]
    candidates = dataclasses.replace(found, topics=topics, run=first)
    model, name = outcome.model, outcome.model.name
    runs = _beside(model, collection, candidates)
    source, origin = f"{name}/{collection.name}", first_stage.candidates
    parts = HeldOut(first, held_out, qrels, [collection.name], source, origin)
    if model.reads == "posts":
        tuning = parts.tune(measure, folds=min(5, len(qrels)))
        trained = cross_validated(first, held_out, tuning)
        attempt = f"--reranker {name} --lambda {tuning.weight:g}"
    else:
        trained = best_of({q: held_out[q] for q in qrels}, DEFAULT_HITS)
        tuning = dataclasses.replace(parts, neural=trained).unmixed(
            measure, outcome.folds
        )
        attempt = "--checkpoint"
    runs[f"trained {name}"] = trained
    evaluator = Evaluator(qrels, collection.measures)
    print(f"{len(qrels)} held-out topics:")
    figures = [(label, evaluator(run)) for label, run in runs.items()]
    print_comparison(figures)
    best = max(mean(of_run[measure]) for _, of_run in figures[:-1])
    return without_gain(tuning, best, attempt)


def _beside(
    model: Model, collection: Collection, candidates: Candidates
) -> dict[str, Run]:
    """Rankings by the first stage, the shipped model and, unless it reads lists, the fusion."""
    name, reads_lists = model.name, model.reads == "lists"
    depth = max(map(len, candidates.run.values()), default=0)
    runs = {f"first stage{f', best {depth}' * reads_lists}": candidates.run}
    shipped = checkpoints.SHIPPED / DEFAULT_FUSION
    shipped /= f"all{ADAPTED_SUFFIX}" if collection.adapted_space else "all"
    if not reads_lists and collection.methods and (shipped / "config.json").exists():
        default = ranker(collection, DEFAULT_FUSION, checkpoint=shipped)
        runs[f"shipped {DEFAULT_FUSION}"] = default.rank(candidates.topics).run
    folder = checkpoints.SHIPPED / name / "all"
    if f"shipped {name}" not in runs and (folder / "config.json").exists():
        known = load_model(name, collection, folder)
        runs[f"shipped {name}"] = candidates.scored_by(mixed(known, has_scores=True))
    return runs


def without_gain(tuning: Tuning, without: float, attempt: str) -> Tuning:
    """λ = 0, with a message, if a gain over the best figure ``without`` the model is not certain.
    ``attempt``: options of a search with the model all the same."""
    if (topics := len(tuning.topics)) < FEWEST:
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
    """First-stage and neural scores of the topics to tune λ on, ``most`` of them. The neural scores
    are those of the training's held-out topics. A checkpoint that was not trained on the
    collection, a shipped one, has not seen its topics, and scores them now."""
    data = own_training_set(collection, most)
    candidates, qrels = data.training.candidates, data.training.qrels
    if collection.name in checkpoints.load(checkpoint, model).metrics.get(
        "trained_on", []
    ):
        neural = read_held_out(checkpoint, f"--collection {collection.title}")
    else:
        neural = candidates.scored_by(load_model(model, collection, checkpoint))
    lexical = {q: scores for q, scores in candidates.run.items() if q in neural}
    if (
        any(scores.keys() - neural[q].keys() for q, scores in lexical.items())
        or len(lexical) < 2
    ):
        raise DataError(
            f"{checkpoint}: its scores of held-out topics are not of these topics and posts, which "
            f"have changed since; train again with `python -m pipeline.train {model} --collection "
            f"{collection.title}`"
        )
    judged = {query_id: qrels[query_id] for query_id in lexical}
    source = f"{model}/{checkpoint.name}"
    return HeldOut(lexical, neural, judged, [collection.name], source, data.candidates)
