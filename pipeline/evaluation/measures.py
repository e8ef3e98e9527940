"""Measures of a run against judgments, computed by trec_eval's code (pytrec_eval).

Measures are named as in ir_measures: ``AP``, ``P@30``, ``RR``, ``nDCG@20``, ``R@1000``,
``AP(rel=2)``. Every judged topic counts, as with ``trec_eval -c``: a topic without
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
"""Another common name of a measure, in lower case -> its name in ir_measures."""


def evaluate(
    qrels: Qrels, run: Run, measures: Sequence[str] = DEFAULT_MEASURES
) -> Values:
    """Return measure -> query_id -> value for every judged topic.

    The topics are in the order of ``qrels``.
    """
    return Evaluator(qrels, measures)(run)


class Evaluator:
    """Evaluates several runs against the same judgments.

    Raises UsageError that names every unknown measure, and DataError if there are no
    judgments.
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
        """Return measure -> query_id -> value, for the judged topics only.

        Raises DataError if a score is NaN or infinite.
        """
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
    """Return the grades of a topic in a form that pytrec_eval evaluates correctly.

    pytrec_eval corrupts memory if a topic has only negative grades, and gives wrong
    figures if a topic has no grades. In both cases the grades are replaced by one
    irrelevant document with an empty id.
    """
    if max(grades.values(), default=-1) < 0:
        return {"": 0}
    return grades


def mean(values: Mapping[str, float] | Iterable[float]) -> float:
    """Return the arithmetic mean of numbers, or of a mapping's values.

    Raises ValueError if there are no numbers.
    """
    if isinstance(values, Mapping):
        values = values.values()
    return statistics.fmean(values)


def heading(measure: str) -> str:
    """Return the name of a measure for a table.

    For example, ``P(judged_only=True)@30`` becomes ``P@30 (judged)``.
    """
    return re.sub(r"\(judged_only=True\)(.*)", r"\1 (judged)", measure)


def warn_of_gaps(name: str, qrels: Qrels, run: Run) -> None:
    """Print the judged topics without a result in a run to stderr.

    ``name`` is the name of the run.
    """
    gaps = [query_id for query_id in qrels if not run.get(query_id)]
    warn_of(f"{name}: judged topics without a result, counted as 0", gaps)


def warn_of(problem: str, query_ids: Sequence[str]) -> None:
    """Print a problem and the topics that have it to stderr, if there are any."""
    if query_ids:
        say(f"{problem} ({len(query_ids)}): {', '.join(query_ids)}")


def without_relevant(qrels: Qrels) -> list[str]:
    """Return the judged topics without a relevant document.

    Every run scores 0 on these topics.
    """
    return [
        query_id
        for query_id, grades in qrels.items()
        if max(grades.values(), default=0) < 1
    ]


def parse_measures(names: Sequence[str]) -> dict[str, Any]:
    """Return name -> measure of ir_measures.

    Raises UsageError that names all unknown measures and all wrong parameters.
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
    """Return the measure of this name, or None if trec_eval does not have it."""
    try:
        measure = _library().parse_measure(name)
        # This call checks the parameters by an assertion.
        is_supported = _library().pytrec_eval.supports(measure)
    except (NameError, ValueError, AssertionError, TypeError, KeyError):
        return None
    if not is_supported:
        return None
    return measure


def _problem_of(name: str, measure: Any) -> str:
    """Return the problem of a measure or of its parameters, or "" if there is none."""
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
    """Return a suggestion for an unknown name, or "" if no known name is close.

    For ``P_30``, ``p.30`` or ``precision@30`` it is ``; did you mean 'P@30'?``.
    """
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
    """Return the module ir_measures.

    Raises DataError if it or trec_eval's code is not installed.
    """
    try:
        import ir_measures
        import pytrec_eval  # noqa: F401  (without it ir_measures knows no measure)
    except ModuleNotFoundError as error:
        raise DataError(
            f"found no package {error.name}, which measures rankings; install the "
            "extra: pip install 'tweetrerank[search]'"
        ) from None
    return ir_measures
