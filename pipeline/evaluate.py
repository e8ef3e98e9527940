"""Measure runs against judgments, and test whether they differ.

    python -m pipeline.evaluate mb2012 ql.run reranked.run
    python -m pipeline.evaluate my.qrels reranked.run -m AP -m nDCG@20 --per-topic
    python -m pipeline.evaluate mb2012 a.run b.run --against ql.run

Measures are trec_eval's, under ir_measures' names. Every judged topic counts; one without results
has 0.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.command.main import run
from pipeline.command.options import argument, existing_file, option

if TYPE_CHECKING:
    from pipeline.collections.trec import Qrels, Run

Values = dict[str, dict[str, float]]
"""Measure -> query_id -> value."""


@dataclass(frozen=True)
class Options:
    """What to measure."""

    qrels: str = argument("name of a collection (mb2012, trecqa-raw, …) or file of judgments")
    runs: tuple[Path, ...] = argument("files of runs", parse=existing_file, many=True)
    measures: tuple[str, ...] = option(
        "a measure, may be repeated: AP, P@30, RR, nDCG@20, R@1000, … (default: AP and P@30, or "
        "what is usual for the named collection)",
        many=True, names=("-m", "--measure"),
    )  # fmt: skip
    per_topic: bool = option(
        "print lines of measure, query_id and a value for each run, separated by tabs", flag=True
    )
    against: Path | None = option(
        "run to compare the others with: difference, and p of Fisher's randomization test and of "
        "the paired t-test, both two-sided, Holm-corrected if there are several runs",
        parse=existing_file, metavar="RUN",
    )  # fmt: skip
    data: Path | None = option("data folder (default: $TWEETRERANK_DATA)", parse=Path)


def main(options: Options) -> None:
    """Read everything, tell what does not fit together, print tables."""
    from pipeline.collections.trec import read_run
    from pipeline.evaluation.measures import Evaluator, parse_measures, without_relevant

    parse_measures(options.measures)
    qrels, usual_measures = _judgments(options.qrels, options.data)
    measures = options.measures or usual_measures
    paths = _with_baseline_first(options)
    evaluator = Evaluator(qrels, measures)
    results: list[Values] = []
    for path in paths:
        run = read_run(path)
        _tell_gaps(path, run, qrels)
        results.append(evaluator(run))
    empty = without_relevant(qrels)
    _tell(f"{options.qrels}: judged topics without a relevant document, always 0", empty)
    if options.per_topic:
        _print_topics(paths, results)
        if options.against:
            print()
    if options.against or not options.per_topic:
        print(f"{options.qrels}, {len(qrels)} judged topics")
        print((_comparison if options.against else _summary)(paths, results))


def _judgments(name: str, data: Path | None) -> "tuple[Qrels, Sequence[str]]":
    """Judgments of a file or, if there is no file of that name, of a collection; usual measures."""
    from pipeline.collections import named
    from pipeline.collections.trec import read_qrels
    from pipeline.command.errors import DataError
    from pipeline.evaluation.measures import DEFAULT_MEASURES

    path = Path(name)
    if path.exists() and not path.is_dir():
        return read_qrels(path), DEFAULT_MEASURES
    if name != path.stem:
        raise DataError(f"there is no file of judgments {name}")
    collection = named.find(name, data)
    qrels = collection.qrels
    if qrels is None:
        raise DataError(collection.missing_judgments)
    return qrels, collection.measures


def _with_baseline_first(options: Options) -> list[Path]:
    if options.against is None:
        return list(options.runs)
    # Compared with itself a run would only make the correction of the others stricter.
    others = [path for path in options.runs if not path.samefile(options.against)]
    if not others:
        from pipeline.command.errors import UsageError

        raise UsageError("--against: found no other run, expected one to compare")
    return [options.against, *others]


def _tell_gaps(path: Path, run: "Run", qrels: "Qrels") -> None:
    from pipeline.evaluation.measures import without_results

    _tell(f"{path}: judged topics without a result, counted as 0", without_results(qrels, run))
    unjudged = [query_id for query_id in run if query_id not in qrels]
    _tell(f"{path}: topics without judgments, left out", unjudged)


def _tell(what: str, query_ids: Sequence[str]) -> None:
    if query_ids:
        print(f"{what} ({len(query_ids)}): {', '.join(query_ids)}", file=sys.stderr)


def _summary(paths: Sequence[Path], results: Sequence[Values]) -> str:
    from pipeline.evaluation.measures import mean
    from pipeline.evaluation.reports import table

    rows = [
        [str(path), *(f"{mean(by_topic):.4f}" for by_topic in values.values())]
        for path, values in zip(paths, results, strict=True)
    ]
    return table(["", *results[0]], rows)


def _comparison(paths: Sequence[Path], results: Sequence[Values]) -> str:
    """A table whose first run is the one that the others are compared with."""
    from pipeline.evaluation.measures import mean
    from pipeline.evaluation.reports import table

    header = [""]
    rows = [[str(path)] for path in paths]
    for measure in results[0]:
        header += [measure, "diff", "p(rand)", "p(t)"]
        values = [list(by_measure[measure].values()) for by_measure in results]
        base = mean(values[0])
        rows[0] += [f"{base:.4f}", "", "", ""]
        for row, numbers, *p_values in zip(rows[1:], values[1:], *_p_values(values), strict=True):
            # Adding 0 turns -0 into 0.
            difference = round(mean(numbers) - base, 4) + 0.0
            row += [f"{mean(numbers):.4f}", f"{difference:+.4f}", *map(_format_p, p_values)]
    count = len(paths) - 1
    corrected = f", Holm-corrected over {count} runs" if count > 1 else ""
    return (
        f"{table(header, rows)}\n"
        f"diff: to {paths[0]}; p: two-sided, by Fisher's randomization test and by the paired "
        f"t-test{corrected}"
    )


def _p_values(values: Sequence[Sequence[float]]) -> tuple[list[float], list[float]]:
    """Corrected p-values of each run against the first, of both tests."""
    from pipeline.evaluation.significance import holm, paired_t_test, randomization_test

    return (
        holm([randomization_test(run, values[0]) for run in values[1:]]),
        holm([paired_t_test(run, values[0]) for run in values[1:]]),
    )


def _format_p(p: float) -> str:
    return "<0.0001" if p < 0.0001 else f"{p:.4f}"


def _print_topics(paths: Sequence[Path], results: Sequence[Values]) -> None:
    """As ``trec_eval -q`` does, with a column for each run; ``all`` is the mean."""
    from pipeline.evaluation.measures import mean

    print("measure", "query_id", *paths, sep="\t")
    for measure, topics in results[0].items():
        for query_id in topics:
            row = [f"{values[measure][query_id]:.4f}" for values in results]
            print(measure, query_id, *row, sep="\t")
        print(measure, "all", *(f"{mean(values[measure]):.4f}" for values in results), sep="\t")


if __name__ == "__main__":
    run("evaluate")
