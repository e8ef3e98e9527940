"""Measures of a run against judgments, computed by trec_eval's code (pytrec_eval).

Measures have ir_measures' names: ``AP``, ``P@30``, ``RR``, ``nDCG@20``, ``R@1000``,
``AP(rel=2)``. Every judged topic counts, as under ``trec_eval -c``: 0 without results or without a
relevant document. Grades of 1 or more are relevant.
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

# Other usual names, in lower case.
_OTHER_NAMES = {
    "map": "AP",
    "mrr": "RR",
    "recip_rank": "RR",
    "precision": "P",
    "recall": "R",
}


def evaluate(
    qrels: Qrels, run: Run, measures: Sequence[str] = DEFAULT_MEASURES
) -> Values:
    """Measure -> query_id -> value, for every judged topic, in the order of the judgments."""
    return Evaluator(qrels, measures)(run)


class Evaluator:
    """Evaluation of several runs against the same judgments; UsageError names every unknown
    measure; DataError: there are no judgments."""

    def __init__(
        self, qrels: Qrels, measures: Sequence[str] = DEFAULT_MEASURES
    ) -> None:
        library = _library().pytrec_eval
        if not qrels:
            raise DataError("found no judged topic, expected at least one")
        self.measures = parse_measures(measures)
        self.query_ids = list(qrels)
        # pytrec_eval corrupts memory on a topic with negative grades only, and gives wrong figures
        # for one without grades; one irrelevant document with an empty id replaces them.
        judged = {
            query_id: grades if max(grades.values(), default=-1) >= 0 else {"": 0}
            for query_id, grades in qrels.items()
        }
        self._evaluator = library.evaluator(set(self.measures.values()), judged)

    def __call__(
        self, run: Mapping[str, Mapping[str, float]]
    ) -> dict[str, dict[str, float]]:
        """Measure -> query_id -> value, for judged topics only."""
        # pytrec_eval skips a topic without an entry, but not one with an empty entry.
        plain = {
            query_id: dict(zip(scores, single_precision(scores, query_id), strict=True))
            for query_id in self.query_ids
            for scores in [run.get(query_id, {})]
        }
        # It has no precision at a share of the recall for a topic without results.
        found = {
            (m.measure, m.query_id): 0.0 if math.isnan(m.value) else float(m.value)
            for m in self._evaluator.iter_calc(plain)
        }
        return {
            name: {query_id: found[measure, query_id] for query_id in self.query_ids}
            for name, measure in self.measures.items()
        }


def mean(values: Mapping[str, float] | Iterable[float]) -> float:
    """Arithmetic mean, of a mapping's values or of numbers; ValueError if there are none."""
    return statistics.fmean(values.values() if isinstance(values, Mapping) else values)


def heading(measure: str) -> str:
    """A measure's name for a table: ``P@30 (judged)`` for ``P(judged_only=True)@30``."""
    return re.sub(r"\(judged_only=True\)(.*)", r"\1 (judged)", measure)


def warn_of_gaps(name: str, qrels: Qrels, run: Run) -> None:
    """Say on stderr which judged topics have no result in the run of this name."""
    gaps = [query_id for query_id in qrels if not run.get(query_id)]
    warn_of(f"{name}: judged topics without a result, counted as 0", gaps)


def warn_of(problem: str, query_ids: Sequence[str]) -> None:
    """Say on stderr which topics have a problem, if there are any."""
    if query_ids:
        say(f"{problem} ({len(query_ids)}): {', '.join(query_ids)}")


def without_relevant(qrels: Qrels) -> list[str]:
    """Judged topics without a relevant document: every run has 0 there."""
    return [
        query_id
        for query_id, grades in qrels.items()
        if max(grades.values(), default=0) < 1
    ]


def parse_measures(names: Sequence[str]) -> dict[str, Any]:
    """Name -> ir_measures' measure."""
    library, measures, problems = _library().pytrec_eval, {}, []
    for name in names:
        try:
            measure = measures[name] = _library().parse_measure(name)
            is_supported = library.supports(
                measure
            )  # Checks the parameters, too, by an assertion
        except (NameError, ValueError, AssertionError, TypeError, KeyError):
            is_supported = False
        if not is_supported:
            problems.append(
                f"found the measure {name!r}, expected one of trec_eval's under ir_measures' name, "
                f"such as {EXAMPLES}{_suggestion(name, library)}"
            )
            continue
        given = [(key, measure.params.get(key, 1)) for key in ("cutoff", "rel")]
        expected = f"expected a whole number from 1 to {HIGHEST_PARAMETER}"
        wrong = [
            (k, v)
            for k, v in given
            if type(v) is bool or not 1 <= v <= HIGHEST_PARAMETER
        ]
        problems += [
            f"{name}: found {key} {value}, {expected}" for key, value in wrong[:1]
        ]
    if problems:
        raise UsageError(problems)
    return measures


def _suggestion(name: str, library: Any) -> str:
    """``; did you mean 'P@30'?`` for ``P_30``, ``p.30`` or ``precision@30``."""
    names = [str(measure.NAME) for measure in library.SUPPORTED_MEASURES]
    known = {known.lower(): known for known in names} | _OTHER_NAMES
    base, cutoff = re.fullmatch(
        r"(.*?)(?:_cut)?(?:[@._ ]?([0-9]+))?", name.strip()
    ).groups()  # type: ignore
    if close := known.get(base.lower()):
        return f"; did you mean '{close}{'@' + cutoff if cutoff else ''}'?"
    return did_you_mean(name, sorted(known.values()))


def _library() -> Any:
    """The module ir_measures; a DataError where it or trec_eval's code is not installed."""
    try:
        import ir_measures
        import pytrec_eval  # noqa: F401  (without it ir_measures knows no measure)
    except ModuleNotFoundError as error:
        raise DataError(
            f"found no package {error.name}, which measures rankings; install the extra: "
            "pip install 'tweetrerank[search]'"
        ) from None
    return ir_measures
