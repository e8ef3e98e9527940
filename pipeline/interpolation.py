"""Mixing neural and first-stage scores, and tuning the weight λ of the mix.

    score = λ · NN + (1 − λ) · LM

J. Rao et al., Multi-Perspective Relevance Matching with Hierarchical ConvNets for Social Media
Search, AAAI 2019, equation 2. The two live on different scales, so each is normalised per topic.
"""

import dataclasses
import itertools
import json
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from indexes.files import atomic_file
from pipeline.collections.trec import Qrels, Run, ranked, single_precision
from pipeline.command.errors import DataError, UsageError
from pipeline.evaluation.measures import Evaluator, mean

RRF_CONSTANT = 60
"""Added to ranks by ``reciprocal``; Cormack et al. 2009's."""

Scores = Mapping[str, float]
ManyScores = Mapping[str, Scores]


def _minmax(scores: Scores) -> dict[str, float]:
    low, high = min(scores.values()), max(scores.values())
    if low == high:
        return dict.fromkeys(scores, 0.5)
    return {doc_id: (score - low) / (high - low) for doc_id, score in scores.items()}


def _zscore(scores: Scores) -> dict[str, float]:
    # Scaling first does not change z-scores, and its squares can neither vanish nor overflow.
    scaled = _minmax(scores)
    center = mean(scaled)
    deviation = math.sqrt(mean((score - center) ** 2 for score in scaled.values()))
    return {doc_id: (score - center) / (deviation or 1) for doc_id, score in scaled.items()}


def _reciprocal(scores: Scores) -> dict[str, float]:
    order = enumerate(ranked(scores), start=1)
    by_rank = {doc_id: 1 / (RRF_CONSTANT + rank) for rank, (doc_id, _) in order}
    return {doc_id: by_rank[doc_id] for doc_id in scores}


_METHODS: dict[str, Callable[[Scores], dict[str, float]]] = {
    "minmax": _minmax, "zscore": _zscore, "reciprocal": _reciprocal, "none": dict,
}  # fmt: skip
NORMALIZATIONS = tuple(_METHODS)


def normalize(scores: Scores, method: str = "minmax", query_id: str = "?") -> dict[str, float]:
    """One topic's scores on a scale that topics and rankers share.

    * ``minmax``: (s − min) / (max − min), from 0 to 1; 0.5 if all scores are equal (libraries
      choose 0, 0.5 or 1; a constant does not change a ranking).
    * ``zscore``: (s − mean) / standard deviation; 0 if all scores are equal.
    * ``reciprocal``: 1 / (60 + rank), ranks from 1 by the tie rule, as in G. Cormack et al.,
      Reciprocal Rank Fusion, SIGIR 2009.
    * ``none``: as they are.

    Args:
        scores: doc_id -> score.
        method: one of :data:`NORMALIZATIONS`.
        query_id: for messages.

    Raises:
        UsageError: the method is unknown.
        DataError: a score is NaN or infinite.
    """
    _check(method)
    single_precision(scores, query_id)
    return _METHODS[method](scores) if scores else {}


def interpolate(
    lexical: ManyScores, neural: ManyScores, weight: float, normalization: str = "minmax"
) -> Run:
    """``weight`` · neural + (1 − ``weight``) · lexical, for each document of the lexical run.

    Only those documents count, also for the normalisation: what else ``neural`` has is ignored.

    Raises:
        UsageError: the weight is not from 0 to 1, or the normalisation is unknown.
        DataError: a document has no neural score, or a score is NaN or infinite.
    """
    if not 0 <= weight <= 1:
        raise UsageError(f"λ: found {weight}, expected a number from 0 to 1")
    _check(normalization)
    return {
        query_id: _mix(*_normalized(query_id, scores, neural, normalization), weight)
        for query_id, scores in lexical.items()
    }


@dataclass(frozen=True)
class Tuning:
    """A weight and how it was found.

    Attributes:
        weight: λ, the neural score's share.
        curve: λ -> mean measure over all topics.
        cross_validated: mean over topics of the measure at the λ chosen without the topic's fold;
            unlike the curve's maximum it is not biased by the choice.
        fold_weights: those λ, one a fold.
        measure: ir_measures' name of what was maximised.
        normalization: one of :data:`NORMALIZATIONS`.
        folds: how many.
        seed: of the split into folds.
        topics: query_ids.
        collections: names of the collections that the topics are from.
        first_stage: what gave the lexical scores.
        checkpoint: what gave the neural scores.
        date: of the tuning, ISO 8601.
    """

    weight: float
    curve: dict[float, float]
    cross_validated: float
    fold_weights: tuple[float, ...]
    measure: str
    normalization: str
    folds: int
    seed: int
    topics: tuple[str, ...]
    collections: tuple[str, ...] = ()
    first_stage: str = ""
    checkpoint: str = ""
    date: str = ""


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

    Among weights equally good the middle of their longest stretch is taken: it is least sensitive
    to the topics at hand. Judged topics without results count as 0, whatever λ.

    Raises:
        UsageError: more folds than topics or fewer than 2, a step that does not divide 1, or an
            unknown measure or normalisation.
        DataError: as :func:`interpolate` does.
    """
    _check(normalization)
    if not 2 <= folds <= len(qrels):
        raise UsageError(f"found {folds} folds, expected 2 to {len(qrels)}, the number of topics")
    values = _values_by_weight(
        lexical, neural, _grid(step), normalization, Evaluator(qrels, [measure])
    )
    fold_weights = []
    held_out = []
    for fold in _split(sorted(qrels), folds, seed):
        others = set(qrels) - set(fold)
        fold_weights.append(_best(_curve(values, others)))
        held_out += [values[fold_weights[-1]][query_id] for query_id in fold]
    curve = _curve(values, set(qrels))
    return Tuning(
        _best(curve), curve, mean(held_out), tuple(fold_weights),
        measure, normalization, folds, seed, tuple(qrels),
    )  # fmt: skip


def save_tuning(path: Path | str, tuning: Tuning) -> None:
    """Write a tuning as JSON; the file appears whole or not at all."""
    content = dataclasses.asdict(tuning)
    content["curve"] = {f"{weight:g}": value for weight, value in tuning.curve.items()}
    with atomic_file(path) as stream:
        json.dump(content, stream, indent=2, ensure_ascii=False, allow_nan=False)
        stream.write("\n")


def load_tuning(path: Path | str) -> Tuning:
    """Read what :func:`save_tuning` wrote.

    Raises:
        DataError: the file is not there or is not a tuning.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        curve = {float(weight): float(value) for weight, value in content["curve"].items()}
        lists = {
            name: tuple(content[name]) for name in ("fold_weights", "topics", "collections")
        }  # fmt: skip
        tuning = Tuning(**{**content, **lists, "curve": curve, "weight": float(content["weight"])})
        if not 0 <= tuning.weight <= 1:
            raise ValueError(f"the weight {tuning.weight} is not from 0 to 1")
        _check(tuning.normalization)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError, UsageError) as error:
        raise DataError(
            f"{path}: found no tuned λ ({error!r}), expected a file of scripts/tune_lambda.py"
        ) from None
    return tuning


def _check(normalization: str) -> None:
    if normalization not in NORMALIZATIONS:
        raise UsageError(
            f"normalisation: found {normalization!r}, expected one of {', '.join(NORMALIZATIONS)}"
        )


def _normalized(
    query_id: str, lexical: Scores, neural: ManyScores, normalization: str
) -> tuple[dict[str, float], dict[str, float]]:
    """One topic's lexical and neural scores, of the same documents in the same order."""
    found = neural.get(query_id, {})
    if missing := [doc_id for doc_id in lexical if doc_id not in found]:
        raise DataError(
            f"topic {query_id}: found no neural score for {len(missing)} of its {len(lexical)} "
            f"documents (the first is {missing[0]}), expected one for each"
        )
    return (
        normalize(lexical, normalization, query_id),
        normalize({doc_id: found[doc_id] for doc_id in lexical}, normalization, query_id),
    )


def _mix(lexical: Scores, neural: Scores, weight: float) -> dict[str, float]:
    return {
        doc_id: weight * neural[doc_id] + (1 - weight) * score for doc_id, score in lexical.items()
    }


def _grid(step: float) -> list[float]:
    parts = round(1 / step) if 0 < step <= 1 else 0
    if not parts or not math.isclose(parts * step, 1):
        raise UsageError(f"step of λ: found {step}, expected one that divides 1, such as 0.05")
    return [part / parts for part in range(parts + 1)]


def _values_by_weight(
    lexical: ManyScores,
    neural: ManyScores,
    weights: Sequence[float],
    normalization: str,
    evaluator: Evaluator,
) -> dict[float, dict[str, float]]:
    """λ -> query_id -> measure."""
    normalized = {
        query_id: _normalized(query_id, lexical[query_id], neural, normalization)
        for query_id in evaluator.query_ids
        if query_id in lexical
    }
    values = {}
    for weight in weights:
        run = {query_id: _mix(*pair, weight) for query_id, pair in normalized.items()}
        (values[weight],) = evaluator(run).values()
    return values


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
