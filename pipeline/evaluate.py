"""Evaluate runs against judgments, and test their differences.

    python -m pipeline.evaluate mb2012 ql.run reranked.run
    python -m pipeline.evaluate my.qrels reranked.run -m AP -m nDCG@20 --per-topic
    python -m pipeline.evaluate mb2012 a.run b.run --against ql.run

Measures are trec_eval's, under ir_measures' names. Every judged topic counts; one without results
counts as 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tweetrerank.indexes.data_error import DataError
from tweetrerank.pipeline.collections import named
from tweetrerank.pipeline.collections.own import is_own
from tweetrerank.pipeline.collections.trec import (
    Qrels,
    Run,
    aligned,
    read_qrels,
    read_run,
)
from tweetrerank.pipeline.command.main import run
from tweetrerank.pipeline.command.options import argument, existing_file, option
from tweetrerank.pipeline.defaults import DEFAULT_MEASURES
from tweetrerank.pipeline.evaluation.measures import (
    Evaluator,
    Values,
    mean,
    parse_measures,
    warn_of,
    warn_of_gaps,
    without_relevant,
)
from tweetrerank.pipeline.ranking.stage_table import Evaluation
from tweetrerank.pipeline.text import counted, listed, say
from tweetrerank.pipeline.usage_error import UsageError


@dataclass(frozen=True)
class Options:
    """Judgments, runs and measures."""

    qrels: str = argument("collection (mb2012, my-posts.toml, …) or file of judgments")
    runs: tuple[Path, ...] = argument("files of runs", parse=existing_file, many=True)
    measures: tuple[str, ...] = option(
        "a measure, may be repeated: AP, P@30, RR, nDCG@20, R@1000, … (default: AP and P@30, or "
        "what is usual for the named collection)",
        many=True,
        names=("-m", "--measure"),
    )
    per_topic: bool = option(
        "print lines of measure, query_id and a value for each run, separated by tabs",
        flag=True,
    )
    against: Path | None = option(
        "run to compare the others with: difference, and p of Fisher's randomization test and of "
        "the paired t-test, both two-sided, Holm-corrected if there are several runs",
        parse=existing_file,
        metavar="RUN",
    )
    data: Path | None = option("data folder (default: $TWEETRERANK_DATA)", parse=Path)


def main(options: Options) -> None:
    """Evaluate the runs, print tables, and tell on stderr what does not fit together."""
    parse_measures(options.measures)
    qrels, usual_measures, skips_own_id = _judgments(options.qrels, options.data)
    evaluator = Evaluator(qrels, options.measures or usual_measures)
    paths, against = [*options.runs], options.against
    if against:
        # A comparison of a run with itself would make the correction of the others stricter.
        if not (others := [path for path in paths if not path.samefile(against)]):
            raise UsageError("--against: found no other run, expected one to compare")
        paths = [against, *others]
    results: list[tuple[str, Values]] = []
    for path in paths:
        scores = aligned(read_run(path), qrels, str(path))
        if skips_own_id:
            from tweetrerank.pipeline.ranking.retrievers import without_own_ids

            scores = without_own_ids(scores)
        _warn_of_mismatches(path, scores, qrels)
        results.append((str(path), evaluator(scores)))
    empty = without_relevant(qrels)
    warn_of(
        f"{options.qrels}: judged topics without a relevant document, always 0", empty
    )
    if options.per_topic:
        _print_topics(results)
        if not against:
            return
        print()
    print(f"{options.qrels}, {counted(len(qrels), 'judged topic')}")
    if against:
        from tweetrerank.pipeline.evaluation.significance import print_comparison

        print_comparison(results)
    else:
        print(Evaluation("", dict(results)))


def _judgments(name: str, data: Path | None) -> tuple[Qrels, Sequence[str], bool]:
    """Judgments of a file or, if there is none of that name, of a collection; usual measures; and
    whether a post with the id of its query does not count."""
    if (path := Path(name)).is_file() and not is_own(name):
        return read_qrels(path), DEFAULT_MEASURES, False
    if name != path.stem and not is_own(name):
        raise UsageError(f"there is no file of judgments {name}")
    collection = named.find(name, data)
    if collection.qrels is None:
        raise DataError(collection.missing_judgments)
    collection.check_judged_posts()
    return collection.qrels, collection.measures, collection.skips_own_id


def _warn_of_mismatches(path: Path, scores: Run, qrels: Qrels) -> None:
    judged = list(dict.fromkeys(d for grades in qrels.values() for d in grades))
    found = list(
        dict.fromkeys(
            d for q, of_topic in scores.items() if q in qrels for d in of_topic
        )
    )
    pairs = {"topics": ([*scores], [*qrels]), "posts": (found, judged)}
    for what, (of_run, of_qrels) in pairs.items():
        if of_run and {*of_qrels}.isdisjoint(of_run):
            say(
                f"{path}: none of its {len(of_run):,} {what} ({listed(of_run, 2)}) is among the "
                f"{len(of_qrels):,} judged ones ({listed(of_qrels, 2)}), so all figures are 0"
            )
            return
    warn_of_gaps(str(path), qrels, scores)
    unjudged = [query_id for query_id in scores if query_id not in qrels]
    warn_of(f"{path}: topics without judgments, left out", unjudged)


def _print_topics(results: Sequence[tuple[str, Values]]) -> None:
    """Lines as of ``trec_eval -q``, with a column for each run; ``all`` is the mean."""
    print("measure", "query_id", *(name for name, _ in results), sep="\t")
    for measure, topics in results[0][1].items():
        by_run = [values[measure] for _, values in results]
        for query_id in topics:
            print(measure, query_id, *(f"{v[query_id]:.4f}" for v in by_run), sep="\t")
        print(measure, "all", *(f"{mean(v):.4f}" for v in by_run), sep="\t")


if __name__ == "__main__":
    run("evaluate")
