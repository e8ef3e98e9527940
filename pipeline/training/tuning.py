"""λ of the interpolation, tuned by cross-validation on held-out training topics."""

from __future__ import annotations

import dataclasses
import datetime
import itertools
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.checkpoints import Tuning
from pipeline.collections.named import find, training_collections
from pipeline.collections.trec import Qrels, Run, read_run
from pipeline.command.errors import DataError, UsageError
from pipeline.evaluation.measures import Evaluator, mean
from pipeline.interpolation import ManyScores, check_normalization, mix, normalized_pair

HELD_OUT_FILE = "held_out.run.gz"
"""In a checkpoint's folder: neural scores of training topics by models that had not seen them."""


@dataclass(frozen=True)
class HeldOut:
    """Scores of held-out training topics.

    Attributes:
        collections: names of the training collections.
        lexical: first-stage scores of their topics.
        neural: neural scores of the same posts.
        qrels: judgments of those topics.
        checkpoint: source of the neural scores, ``<model>/<name>``.
    """

    collections: Sequence[str]
    lexical: Run
    neural: Run
    qrels: Qrels
    checkpoint: str

    @classmethod
    def read(cls, checkpoint: Path, test: str, data: Path | None) -> HeldOut:
        """Read the scores in a checkpoint's folder, and runs and judgments of their topics.

        Args:
            checkpoint: the folder.
            test: collection left out of training, and of the tuning.
            data: data folder.

        Raises:
            DataError: the scores are missing, or some belong to the collection ``test``.
        """
        test = find(test, data).name
        path = checkpoint / HELD_OUT_FILE
        if not path.exists():
            raise DataError(
                f"{path}: there are no scores of held-out topics; train again with "
                f"`python -m pipeline.train MODEL --test {test}`"
            )
        neural = read_run(path)
        names: list[str] = []
        lexical: Run = {}
        qrels: Qrels = {}
        for name in training_collections(test, data):
            collection = find(name, data)
            judgments = collection.qrels or {}
            topics = set(judgments) & set(neural)
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
        described = f"{checkpoint.parent.name}/{checkpoint.name}"
        return cls(names, lexical, neural, qrels, described)

    def tune(
        self, measure: str = "AP", normalization: str = "minmax", folds: int = 5, seed: int = 1
    ) -> Tuning:
        """:func:`tune_weight` on these topics, with its provenance."""
        tuning = tune_weight(
            self.lexical,
            self.neural,
            self.qrels,
            folds=folds,
            measure=measure,
            normalization=normalization,
            seed=seed,
        )
        return dataclasses.replace(
            tuning,
            collections=tuple(self.collections),
            first_stage="official query-likelihood runs",
            checkpoint=self.checkpoint,
            date=datetime.date.today().isoformat(),
        )


def tune_weight(
    lexical: ManyScores,
    neural: ManyScores,
    qrels: Qrels,
    folds: int = 5,
    step: float = 0.05,
    measure: str = "AP",
    normalization: str = "minmax",
    seed: int = 1,
) -> Tuning:
    """The λ of the grid 0, ``step``, … 1 with the best mean over all judged topics.

    Among equally good weights the middle of their longest stretch is taken, the one least
    sensitive to the topics at hand. Judged topics without results count as 0, whatever λ.

    Raises:
        UsageError: more folds than topics or fewer than 2, a step that does not divide 1, or an
            unknown measure or normalisation.
        DataError: as :func:`pipeline.interpolation.interpolate` does.
    """
    check_normalization(normalization)
    if not 2 <= folds <= len(qrels):
        raise UsageError(f"found {folds} folds, expected 2 to {len(qrels)}, the number of topics")
    grid, evaluator = _grid(step), Evaluator(qrels, [measure])
    normalized = {
        query_id: normalized_pair(query_id, lexical[query_id], neural, normalization)
        for query_id in evaluator.query_ids
        if query_id in lexical
    }
    values: dict[float, dict[str, float]] = {}  # λ -> query_id -> measure
    for weight in grid:
        run = {query_id: mix(*pair, weight) for query_id, pair in normalized.items()}
        (values[weight],) = evaluator(run).values()
    fold_weights, held_out = [], []
    for fold in _split(sorted(qrels), folds, seed):
        others = set(qrels) - set(fold)
        fold_weights.append(_best(_curve(values, others)))
        held_out += [values[fold_weights[-1]][query_id] for query_id in fold]
    curve = _curve(values, set(qrels))
    return Tuning(
        weight=_best(curve),
        curve=curve,
        cross_validated=mean(held_out),
        fold_weights=tuple(fold_weights),
        measure=measure,
        normalization=normalization,
        folds=folds,
        seed=seed,
        topics=tuple(qrels),
    )


def _grid(step: float) -> list[float]:
    parts = round(1 / step) if 0 < step <= 1 else 0
    if not parts or not math.isclose(parts * step, 1):
        raise UsageError(f"step of λ: found {step}, expected one that divides 1, such as 0.05")
    return [part / parts for part in range(parts + 1)]


def _split(query_ids: list[str], folds: int, seed: int) -> list[list[str]]:
    random.Random(seed).shuffle(query_ids)
    return [query_ids[fold::folds] for fold in range(folds)]


def _curve(
    values: Mapping[float, Mapping[str, float]], query_ids: Iterable[str]
) -> dict[float, float]:
    chosen = list(query_ids)
    return {weight: mean(by_topic[q] for q in chosen) for weight, by_topic in values.items()}


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
