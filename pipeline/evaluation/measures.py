"""Measures of a run against judgments, computed by trec_eval's code (pytrec_eval).

Measures have ir_measures' names: ``AP``, ``P@30``, ``RR``, ``nDCG@20``, ``R@1000``,
``AP(rel=2)``. Every judged topic counts, as under ``trec_eval -c``: a topic without
results or without a relevant document counts as 0. Grades of 1 or more are relevant.
"""

import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tweetrerank.indexes.data_error import DataError
from tweetrerank.pipeline.collections.trec import Qrels, Run, single_precision
from tweetrerank.pipeline.defaults import DEFAULT_MEASURES
from tweetrerank.pipeline.text import did_you_mean, say
from tweetrerank.pipeline.usage_error import UsageError

Values = Mapping[str, Mapping[str, float]]  # Measure -> query_id -> value
EXAMPLES = "AP, P@30, RR, nDCG@20, R@1000"
HIGHEST_PARAMETER = 1_000_000

_OTHER_NAMES = {
    "map": "AP",
    "mrr": "RR",
    "recip_rank": "RR",
    "precision": "P",
    "recall": "R",
}
"""Other usual names in lower case -> ir_measures' names."""


def evaluate(
    qrels: Qrels, run: Run, measures: Sequence[str] = DEFAULT_MEASURES
) -> Values:
    """Return measure -> query_id -> value for every judged topic, in their order."""
    return Evaluator(qrels, measures)(run)


class Evaluator:
    """Evaluation of several runs against the same judgments.

    UsageError names every unknown measure. DataError: there are no judgments.
    """

    def __init__(
        self, qrels: Qrels, measures: Sequence[str] = DEFAULT_MEASURES
    ) -> None:
        library = _library().pytrec_eval
        if not qrels:
            raise DataError("found no judged topic, expected at least one")
        self.measures = parse_measures(measures)
        self.query_ids = list(qrels)
        judged = {query_id: _safe(grades) for query_id, grades in qrels.items()}
        self._evaluator = library.evaluator(set(self.measures.values()), judged)

    def __call__(
        self, run: Mapping[str, Mapping[str, float]]
    ) -> dict[str, dict[str, float]]:
        """Return measure -> query_id -> value for judged topics only."""
        plain = {}
        for query_id in self.query_ids:
            # pytrec_eval skips a topic without an entry, but not an empty entry.
            scores = run.get(query_id, {})
            singles = single_precision(scores, query_id)
            plain[query_id] = dict(zip(scores, singles, strict=True))
        values = {}
        for metric in self._evaluator.iter_calc(plain):
            # Precision at a share of the recall is NaN for a topic without results.
            value = 0.0 if math.isnan(metric.value) else float(metric.value)
            values[metric.measure, metric.query_id] = value
        return {
            name: {query_id: values[measure, query_id] for query_id in self.query_ids}
            for name, measure in self.measures.items()
        }


def _safe(grades: dict[str, int]) -> dict[str, int]:
    """The grades of a topic in a form that pytrec_eval evaluates correctly.

    It corrupts memory on a topic with negative grades only, and gives wrong figures for
    a topic without grades. One irrelevant document with an empty id replaces them.
    """
    if max(grades.values(), default=-1) < 0:
        return {"": 0}
    return grades


def mean(values: Mapping[str, float] | Iterable[float]) -> float:
    """Return the arithmetic mean of numbers, or of a mapping's values.

    ValueError: there are none.
    """
    if isinstance(values, Mapping):
        values = values.values()
    return statistics.fmean(values)


def heading(measure: str) -> str:
    """Return a measure's name for a table.

    ``P@30 (judged)`` for ``P(judged_only=True)@30``.
    """
    return re.sub(r"\(judged_only=True\)(.*)", r"\1 (judged)", measure)


def warn_of_gaps(name: str, qrels: Qrels, run: Run) -> None:
    """Print on stderr the judged topics without a result in the run of this name."""
    gaps = [query_id for query_id in qrels if not run.get(query_id)]
    warn_of(f"{name}: judged topics without a result, counted as 0", gaps)


def warn_of(problem: str, query_ids: Sequence[str]) -> None:
    """Print a problem and its topics on stderr, if there are any."""
    if query_ids:
        say(f"{problem} ({len(query_ids)}): {', '.join(query_ids)}")


def without_relevant(qrels: Qrels) -> list[str]:
    """Return the judged topics without a relevant document.

    Every run has 0 there.
    """
    return [
        query_id
        for query_id, grades in qrels.items()
        if max(grades.values(), default=0) < 1
    ]


def parse_measures(names: Sequence[str]) -> dict[str, Any]:
    """Return name -> ir_measures' measure.

    UsageError names all unknown measures and wrong parameters.
    """
    measures = {}
    problems = []
    for name in names:
        measure = _parsed(name)
        problem = _problem_of(name, measure)
        if problem:
            problems.append(problem)
        measures[name] = measure
    if problems:
        raise UsageError(problems)
    return measures


def _parsed(name: str) -> Any:
    """The measure of a name; None for one that trec_eval does not have."""
    try:
        measure = _library().parse_measure(name)
        # An assertion in it checks the parameters.
        is_supported = _library().pytrec_eval.supports(measure)
    except (NameError, ValueError, AssertionError, TypeError, KeyError):
        return None
    if not is_supported:
        return None
    return measure


def _problem_of(name: str, measure: Any) -> str:
    """The problem of a measure, or of its parameters; "" without any."""
    if measure is None:
        return (
            f"found the measure {name!r}, expected one of trec_eval's under "
            f"ir_measures' name, such as {EXAMPLES}{_suggestion(name)}"
        )
    for key in ("cutoff", "rel"):
        value = measure.params.get(key, 1)
        if type(value) is bool or not 1 <= value <= HIGHEST_PARAMETER:
            return (
                f"{name}: found {key} {value}, expected a whole number from 1 to "
                f"{HIGHEST_PARAMETER}"
            )
    return ""


def _suggestion(name: str) -> str:
    """``; did you mean 'P@30'?`` for ``P_30``, ``p.30`` or ``precision@30``."""
    supported = _library().pytrec_eval.SUPPORTED_MEASURES
    known_names = [str(measure.NAME) for measure in supported]
    names = {known.lower(): known for known in known_names} | _OTHER_NAMES
    parsed = re.fullmatch(r"(.*?)(?:_cut)?(?:[@._ ]?([0-9]+))?", name.strip())
    base, cutoff = parsed.groups()  # type: ignore[union-attr]
    close = names.get(base.lower())
    if close is None:
        return did_you_mean(name, sorted(names.values()))
    if cutoff:
        close = f"{close}@{cutoff}"
    return f"; did you mean '{close}'?"


def _library() -> Any:
    """The module ir_measures; DataError: it or trec_eval's code is not installed."""
    try:
        import ir_measures
        import pytrec_eval  # noqa: F401  (without it ir_measures knows no measure)
    except ModuleNotFoundError as error:
        raise DataError(
            f"found no package {error.name}, which measures rankings; install the "
            "extra: pip install 'tweetrerank[search]'"
        ) from None
    return ir_measures
