"""The functions that ``tables.toml`` refers to, by their names there."""

from collections.abc import Callable, Mapping, Sequence

from experiments.added_measures import clean_questions, importances, sizes
from experiments.calibration_error import calibration
from experiments.cells import Result, Setup
from experiments.question_curves import question_curves
from experiments.significance_marks import significance, stages
from experiments.tables import Table
from experiments.year_reports import categories, gains, samples

FINISHES: Mapping[str, Callable[[Table, Sequence[Result], Setup], list[Result]]] = {
    "calibration": calibration,
    "clean_questions": clean_questions,
    "importances": importances,
    "question_curves": question_curves,
    "significance": significance,
    "sizes": sizes,
    "stages": stages,
}
"""The functions that add marks and measures to results, by a table's ``finish``."""

REPORTS: Mapping[str, Callable[[Table, Sequence[Result], Setup], str]] = {
    "categories": categories,
    "gains": gains,
    "samples": samples,
}
"""The functions that return Markdown made from runs and posts, by ``report``."""
