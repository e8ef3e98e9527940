"""λ of the interpolation, tuned by cross-validation on held-out training topics."""

from __future__ import annotations

import dataclasses
import datetime
import itertools
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.collections.named import find, training_collections
from pipeline.collections.trec import Qrels, Run, read_run
from pipeline.errors import DataError, UsageError
from pipeline.evaluation.measures import Evaluator, mean
from pipeline.ranking.interpolation import ManyScores, interpolate
from pipeline.ranking.tuning import Calibration, Tuning
from rerankers.logistic import logistic_regression

HELD_OUT_FILE = "held_out.run.gz"
"""In a checkpoint's folder: neural scores of training topics by models that had not seen them."""

STEPS = 20  # Of λ, from 0 to 1


@dataclass(frozen=True)
class HeldOut:
    """First-stage and neural scores of held-out training topics, and their judgments.

    The source of the neural scores, ``checkpoint``, is ``<model>/<name>``; ``first_stage`` that of
    the others.
    """

    lexical: Run
    neural: Run
    qrels: Qrels
    collections: Sequence[str] = ()
    checkpoint: str = ""
    first_stage: str = "official query-likelihood runs"

    @classmethod
    def joined(cls, parts: Sequence[HeldOut]) -> HeldOut:
        """The scores of several collections, with its name before each query_id."""
        names = [part.collections[0] for part in parts]

        def joined(field: str) -> dict[str, Any]:
            named = zip(names, (getattr(part, field) for part in parts), strict=True)
            return {f"{name}/{q}": scores for name, run in named for q, scores in run.items()}

        lexical, neural, qrels = map(joined, ("lexical", "neural", "qrels"))
        return cls(lexical, neural, qrels, names, parts[0].checkpoint, parts[0].first_stage)

    @classmethod
    def read(cls, checkpoint: Path, test: str, data: Path | None) -> HeldOut:
        """Read the scores in a checkpoint's folder, and runs and judgments of their topics.

        The collection ``test`` is left out of training and of the tuning.
        """
        test = find(test, data).name
        neural, path = read_held_out(checkpoint, f"--test {test}"), checkpoint / HELD_OUT_FILE
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
        if unknown := sorted(set(neural) - set(lexical)):
            raise DataError(
                f"{path}: found scores of topics {', '.join(unknown[:3])} …, which belong to none "
                f"of the collections that {test} may be tuned on; name the checkpoint trained "
                "without it"
            )
        return cls(lexical, neural, qrels, names, f"{checkpoint.parent.name}/{checkpoint.name}")

    def tune(self, measure: str = "AP", folds: int = 5, seed: int = 1) -> Tuning:
        """The λ of the grid 0, 0.05, … 1 with the best mean over all judged topics.

        Among equally good weights the middle of their longest stretch is taken, the one least
        sensitive to the topics at hand. Judged topics without results count as 0, whatever λ.

        Raises:
            UsageError: more folds than topics or fewer than 2, or an unknown measure.
            DataError: as :func:`pipeline.ranking.interpolation.interpolate` does.
        """
        if not 2 <= folds <= (count := len(self.qrels)):
            raise UsageError(f"found {folds} folds, expected 2 to {count}, the number of topics")
        evaluator = Evaluator(self.qrels, [measure])
        first = {q: self.lexical[q] for q in evaluator.query_ids if q in self.lexical}
        values: dict[float, dict[str, float]] = {}  # λ -> query_id -> measure
        for weight in (part / STEPS for part in range(STEPS + 1)):
            (values[weight],) = evaluator(interpolate(first, self.neural, weight)).values()

        def curve(query_ids: set[str]) -> dict[float, float]:
            return {weight: mean(of[q] for q in query_ids) for weight, of in values.items()}

        topics, parts = set(self.qrels), fold_topics(self.qrels, folds, seed)
        weights = [_best(curve(topics - set(fold))) for fold in parts]
        held_out = [values[w][q] for w, fold in zip(weights, parts, strict=True) for q in fold]
        found = curve(topics)
        of_folds = mean(held_out), tuple(weights), measure, "minmax", folds, seed
        return self._described(Tuning(_best(found), found, *of_folds, tuple(self.qrels)))

    def unmixed(self, measure: str, folds: int) -> Tuning:
        """The figures of a model without λ, whose scores of topics held out in folds are these."""
        evaluator = Evaluator(self.qrels, [measure])
        first, trained = (mean(evaluator(run)[measure]) for run in (self.lexical, self.neural))
        curve, topics = {0.0: first, 1.0: trained}, tuple(self.qrels)
        return self._described(Tuning(1.0, curve, trained, (), measure, "none", folds, 0, topics))

    def _described(self, tuning: Tuning) -> Tuning:
        """A tuning with its provenance and the calibration of the neural scores."""
        return dataclasses.replace(
            tuning,
            collections=tuple(self.collections),
            first_stage=self.first_stage,
            checkpoint=self.checkpoint,
            date=datetime.date.today().isoformat(),
            calibration=calibrate(self.neural, self.qrels),
        )


def calibrate(scores: ManyScores, qrels: Qrels) -> Calibration | None:
    """The logistic calibration of judged topics' scores, with the same weight for each topic.

    Posts without a judgment count as not relevant. None if relevant posts do not have higher
    scores, or there are none.
    """
    topics = [query_id for query_id in qrels if scores.get(query_id)]
    values = [score for query_id in topics for score in scores[query_id].values()]
    relevant = [qrels[q].get(doc_id, 0) > 0 for q in topics for doc_id in scores[q]]
    if len(set(relevant)) < 2:
        return None
    weights = [1 / len(scores[query_id]) for query_id in topics for _ in scores[query_id]]
    # Without regularisation, which would depend on the scores' scale.
    [slope], intercept = logistic_regression([[value] for value in values], relevant, weights)
    return Calibration(round(float(slope), 6), round(intercept, 6)) if slope > 0 else None


def read_held_out(checkpoint: Path, training: str) -> Run:
    """The scores in a checkpoint's folder, which are written with the options ``training``."""
    path = checkpoint / HELD_OUT_FILE
    if not path.exists():
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
    stretches = [
        list(stretch)
        for is_best, stretch in itertools.groupby(curve, key=lambda weight: curve[weight] >= limit)
        if is_best
    ]
    longest = max(stretches, key=len)
    return longest[(len(longest) - 1) // 2]
