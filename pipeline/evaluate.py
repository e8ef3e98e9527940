"""Evaluate runs by judgments, and test the differences between runs.

    python -m pipeline.evaluate mb2012 ql.run reranked.run
    python -m pipeline.evaluate my.qrels reranked.run -m AP -m nDCG@20 --per-topic
    python -m pipeline.evaluate mb2012 a.run b.run --against ql.run

The measures are computed as by trec_eval and named as in ir_measures. Every judged
topic counts. A topic without results has the value 0.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

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

Results = Sequence[tuple[str, Values]]
"""Pairs of a run's path and its measures for each topic."""


@dataclass(frozen=True)
class Options:
    """Judgments, runs and measures."""

    qrels: str = argument("collection (mb2012, my-posts.toml, …) or file of judgments")
    runs: tuple[Path, ...] = argument("files of runs", parse=existing_file, many=True)
    measures: tuple[str, ...] = option(
        "a measure, may be repeated: AP, P@30, RR, nDCG@20, R@1000, … (default: AP and "
        "P@30, or what is usual for the named collection)",
        many=True,
        names=("-m", "--measure"),
    )
    per_topic: bool = option(
        "print lines of measure, query_id and a value for each run, separated by tabs",
        flag=True,
    )
    against: Path | None = option(
        "run to compare the others with: difference, and p of Fisher's randomization "
        "test and of the paired t-test, both two-sided, Holm-corrected if there are "
        "several runs",
        parse=existing_file,
        metavar="RUN",
    )
    data: Path | None = option("data folder (default: $TWEETRERANK_DATA)", parse=Path)


class Judgments(NamedTuple):
    """Judgments from a collection or a file, and how to evaluate by them."""

    qrels: Qrels
    measures: Sequence[str]  # The usual measures of the collection
    skips_own_id: bool  # Whether to leave out the post that has the query's id


def main(options: Options) -> None:
    """Evaluate the runs, print tables, and warn of runs that do not fit the
    judgments.
    """
    parse_measures(options.measures)
    paths = _paths(options)
    judgments = _judgments(options.qrels, options.data)
    qrels = judgments.qrels
    evaluator = Evaluator(qrels, options.measures or judgments.measures)
    results = []
    for path in paths:
        scores = aligned(read_run(path), qrels, str(path))
        if judgments.skips_own_id:
            from tweetrerank.pipeline.ranking.retrievers import without_own_ids

            scores = without_own_ids(scores)
        _warn_of_mismatches(path, scores, qrels)
        results.append((str(path), evaluator(scores)))
    warn_of(
        f"{options.qrels}: judged topics without a relevant document, always 0",
        without_relevant(qrels),
    )
    if options.per_topic:
        _print_topics(results)
        if not options.against:
            return
        print()
    print(f"{options.qrels}, {counted(len(qrels), 'judged topic')}")
    if options.against:
        from tweetrerank.pipeline.evaluation.significance import print_comparison

        print_comparison(results)
    else:
        print(Evaluation("", dict(results)))


def _paths(options: Options) -> list[Path]:
    """Return the files of the runs, with the run of ``--against`` first.

    That run is not compared with itself, because every further comparison makes the
    Holm correction of the others stricter. Raises UsageError if no other run is left.
    """
    baseline = options.against
    if baseline is None:
        return list(options.runs)
    others = [path for path in options.runs if not path.samefile(baseline)]
    if not others:
        raise UsageError("--against: found no other run, expected one to compare")
    return [baseline, *others]


def _judgments(name: str, data: Path | None) -> Judgments:
    """Return the judgments of a file or, if no file has the name, of a collection.

    Raises UsageError if the name looks like a path but there is no such file. Raises
    DataError if the collection has no judgments.
    """
    path = Path(name)
    if path.is_file() and not is_own(name):
        return Judgments(read_qrels(path), DEFAULT_MEASURES, False)
    if name != path.stem and not is_own(name):
        raise UsageError(f"there is no file of judgments {name}")
    collection = named.find(name, data)
    if collection.qrels is None:
        raise DataError(collection.missing_judgments)
    collection.check_judged_posts()
    return Judgments(collection.qrels, collection.measures, collection.skips_own_id)


def _warn_of_mismatches(path: Path, scores: Run, qrels: Qrels) -> None:
    """Warn if the run shares no topic or no post with the judgments.

    Otherwise warn of judged topics that the run lacks, and of topics that have no
    judgments.
    """
    common = [topic_scores for topic, topic_scores in scores.items() if topic in qrels]
    pairs = {
        "topics": (list(scores), list(qrels)),
        "posts": (_distinct(common), _distinct(qrels.values())),
    }
    for noun, (of_run, judged) in pairs.items():
        if of_run and set(judged).isdisjoint(of_run):
            say(
                f"{path}: none of its {len(of_run):,} {noun} ({listed(of_run, 2)}) is "
                f"among the {len(judged):,} judged ones ({listed(judged, 2)}), so all "
                "figures are 0"
            )
            return
    warn_of_gaps(str(path), qrels, scores)
    unjudged = [query_id for query_id in scores if query_id not in qrels]
    warn_of(f"{path}: topics without judgments, left out", unjudged)


def _distinct(lists: Iterable[Iterable[str]]) -> list[str]:
    """Return the ids of the posts of several topics, each id once, in order."""
    posts: dict[str, None] = {}
    for doc_ids in lists:
        posts.update(dict.fromkeys(doc_ids))
    return list(posts)


def _print_topics(results: Results) -> None:
    """Print the value of each measure and topic, with a column for each run.

    As in ``trec_eval -q``, the mean is in a line with the query_id ``all``.
    """
    _print_cells(["measure", "query_id"] + [name for name, _ in results])
    _, first_values = results[0]
    for measure, topics in first_values.items():
        by_run = [values[measure] for _, values in results]
        for query_id in topics:
            figures = [f"{values[query_id]:.4f}" for values in by_run]
            _print_cells([measure, query_id, *figures])
        means = [f"{mean(values):.4f}" for values in by_run]
        _print_cells([measure, "all", *means])


def _print_cells(cells: Iterable[str]) -> None:
    print("\t".join(cells))


if __name__ == "__main__":
    run("evaluate")
