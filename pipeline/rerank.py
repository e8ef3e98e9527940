"""Rerank several runs of somebody else, and report what it did to each of them.

    python -m pipeline.rerank --topics mb2012 ql mine.run
    python -m pipeline.rerank --topics mb2012 trec-runs/* --skip-unknown --report runs.csv
    python -m pipeline.rerank --topics my-topics.tsv --index my-index --qrels my.qrels a.run b.run

A run's posts stay the same, their order changes. The model ``window`` reads the run's own scores;
those of other models are mixed with them. The report has the form of tables 6 and 7 of Severyn &
Moschitti (SIGIR 2015), whose model ``sm_cnn`` has a prior of the run's ranks.
"""

import csv
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tweetrerank.indexes.files import atomic_file
from tweetrerank.indexes.posts import Post
from tweetrerank.pipeline.collections.collection import Collection
from tweetrerank.pipeline.collections.trec import aligned, read_run, write_run
from tweetrerank.pipeline.command.main import run
from tweetrerank.pipeline.command.options import (
    argument,
    existing_file,
    fraction,
    option,
    output_file,
    positive_int,
)
from tweetrerank.pipeline.defaults import DEFAULT_HITS, DEFAULT_WINDOW, NONE
from tweetrerank.pipeline.evaluation.measures import (
    Evaluator,
    Values,
    mean,
    warn_of_gaps,
)
from tweetrerank.pipeline.ranking.ranking_options import ModelOptions
from tweetrerank.pipeline.runtime import bar, provenance
from tweetrerank.pipeline.text import print_table, say
from tweetrerank.pipeline.usage_error import UsageError

if TYPE_CHECKING:
    from tweetrerank.pipeline.ranking.ranker import Ranker
    from tweetrerank.pipeline.ranking.retrievers import Candidates

MEASURES = ("P@30", "AP")  # Measures of the report; places are by the first
_SAME = (
    9  # Decimals of means in comparisons: sums in another order differ in the last bits
)

DEFAULT_WEIGHT = 0.3
"""λ. On held-out topics of 2011 to 2013 runs of any quality gain, from ql's to a learned fusion's.
The best λ is higher for weak runs, and lower for strong ones, but a run of unknown quality should
not lose; see "Reranking of runs" in scripts/results/notes.md."""


@dataclass(frozen=True)
class Options(ModelOptions):
    """Runs and report."""

    runs: tuple[str, ...] = argument(
        "TREC runs; ql and rm3 name a collection's official runs", many=True
    )
    reranker: str = option("model", default=DEFAULT_WINDOW)
    weight: float | None = option(
        "λ, the neural score's share; the rest is the run's own score (default: "
        f"{DEFAULT_WEIGHT}; window and fusions have none)",
        parse=fraction,
        names=("--lambda",),
    )
    output: Path = option(
        "folder of the reranked runs, one file each: the run's name and the model's",
        default=Path("runs/reranked"),
        parse=Path,
        metavar="DIR",
    )
    report: Path | None = option(
        "also write the report here, unrounded", parse=output_file, metavar="CSV"
    )
    group_size: int = option(
        "runs of the top, middle and bottom groups, whose average changes are reported if there "
        "are enough runs for all three",
        default=30,
        parse=positive_int,
    )


class Job(NamedTuple):
    """A run, the file that it is read from and the one that it is written to."""

    name: str
    path: Path
    output: Path


def main(options: Options) -> None:
    """Read and check all runs, rerank and write one after the other, report."""
    started = time.perf_counter()
    collection = options.open_collection()
    jobs = _jobs(options, collection)
    ranker = _ranker(options, collection)
    candidates = _inputs(options, collection, jobs)
    evaluator = Evaluator(collection.qrels, MEASURES) if collection.qrels else None
    results: dict[
        str, tuple[Values, Values]
    ] = {}  # Name of a run -> values before and after
    for job, found in candidates.items():
        ranking = ranker.rerank(found, partial(bar, what=job.name, unit="pair"))
        write_run(job.output, ranking.run, options.reranker)
        say(f"wrote {job.output}")
        if evaluator:
            results[job.name] = evaluator(found.run), evaluator(ranking.run)
    if evaluator:
        _report(options, collection, ranker, results)
    else:
        print(f"no report: {collection.missing_judgments}")
    say(
        f"wrote {len(jobs)} runs to {options.output} in {time.perf_counter() - started:.1f} s"
    )


def _jobs(options: Options, collection: Collection) -> list[Job]:
    """Files to read and to write; UsageError has all arguments that make no sense."""
    rules = {
        f"--index: found it with --topics {options.topics}, expected a file of topics; a "
        "collection has its own posts": options.index
        and not Path(options.topics).is_file(),
        "--reranker: found 'none', expected a model: nothing would be reranked": (
            options.reranker == NONE
        ),
        f"--output: found the file {options.output}, expected a folder": (
            options.output.exists() and not options.output.is_dir()
        ),
    }
    jobs, problems = [], [problem for problem, is_there in rules.items() if is_there]
    for text in options.runs:
        official = collection.runs.get(text)
        try:
            path = official or existing_file(text)
        except ValueError as error:
            nor = f"nor has {collection.name} an official run of that name"
            problems.append(f"runs: {error}, {nor}")
            continue
        name = text if official else path.name
        jobs.append(
            Job(name, path, options.output / reranked_name(name, options.reranker))
        )
    inputs = Counter(job.path.resolve() for job in jobs)
    outputs = Counter(job.output.resolve() for job in jobs)
    for _, path, output in jobs:
        if inputs[path.resolve()] > 1:
            problems.append(f"runs: found {path} more than once, expected it once")
        elif outputs[output.resolve()] > 1:
            problems.append(
                f"runs: found {path} and another that would be written to {output}, expected "
                "files of different names"
            )
        if output.resolve() in inputs:
            problems.append(
                f"--output: {output} is one of the runs, and would be overwritten"
            )
    if options.report and options.report.resolve() in {*inputs, *outputs}:
        problems.append(
            f"--report: found {options.report}, which is a run; expected another file"
        )
    if problems:
        raise UsageError(list(dict.fromkeys(problems)))
    return jobs


def _inputs(
    options: Options, collection: Collection, jobs: list[Job]
) -> dict[Job, "Candidates"]:
    """Candidates of all runs, which are checked before the long work begins; posts are looked up
    once, as that may read the whole collection."""
    from tweetrerank.pipeline.ranking.retrievers import RunRetriever

    topics, hits = collection.topics, options.hits or DEFAULT_HITS
    ids = [topic.query_id for topic in topics]
    runs = {job: aligned(read_run(job.path), ids, str(job.path)) for job in jobs}
    if collection.qrels:
        collection.check_judged_posts()
    wanted = {
        d for run in runs.values() for query_id in ids for d in run.get(query_id, ())
    }
    posts = collection.find_posts(sorted(wanted))

    def known(doc_ids: Sequence[str]) -> dict[str, Post]:
        return {doc_id: posts[doc_id] for doc_id in doc_ids if doc_id in posts}

    candidates = {}
    for job, scores in runs.items():
        retriever = RunRetriever(scores, known, str(job.path), options.skip_unknown)
        found = candidates[job] = retriever.search(topics, hits)
        if cut := sum(len(known([*scores[query_id]])) > hits for query_id in found.run):
            say(
                f"{job.path}: {cut} topics have more than {hits} posts; only the first {hits} are "
                "reranked, written and measured"
            )
        if collection.qrels:
            warn_of_gaps(str(job.path), collection.qrels, found.run)
    return candidates


def _report(
    options: Options,
    collection: Collection,
    ranker: "Ranker",
    results: Mapping[str, tuple[Values, Values]],
) -> None:
    """Print the table, and write the file."""
    from tweetrerank.pipeline.ranking.checkpoints import warn_of_seen

    warn_of_seen(ranker)
    rows = compare(results)
    print(
        f"{collection.name}, {len(collection.qrels or ())} judged topics, {len(rows)} runs "
        f"reranked by {ranker.name}, {ranker.description}"
    )
    print_report(rows, options.group_size)
    if options.report:
        assert ranker.model
        made = {
            "collection": collection.name,
            "reranker": options.reranker,
            "lambda": getattr(ranker.model, "weight", None),
            "checkpoint": "/".join(ranker.model.directory.resolve().parts[-2:]),
            **{
                n: v
                for n, v in provenance().items()
                if n in ("date", "commit", "machine")
            },
        }
        write_csv(options.report, rows, made, options.group_size)
        say(f"wrote {options.report}")


def _ranker(options: Options, collection: Collection) -> "Ranker":
    """The ranker of given runs; warns if nothing of the runs' own order goes into the new one."""
    from tweetrerank.pipeline.ranking.build import RankerSpecification

    found = RankerSpecification(
        collection,
        options.reranker,
        weight=options.weight,
        default_weight=DEFAULT_WEIGHT,
        checkpoint=options.checkpoint,
        **options.loading(),
    ).build()
    assert found.model
    if options.weight == 1 and not found.model.signals:
        say(
            f"note: this {options.reranker} does not read the ranks of a run, so with λ = 1 "
            "nothing of a run's own order is kept; --lambda below 1 mixes in its scores"
        )
    return found


# The report


class Change(NamedTuple):
    """Means over topics of a run's measure before and after reranking, and p of the t-test."""

    before: float
    after: float
    p: float

    @property
    def percent(self) -> float | None:
        """Difference in % of ``before``; None where that is 0."""
        return 100 * (self.after - self.before) / self.before if self.before else None

    @property
    def mark(self) -> str:
        """▲ or ▼ for p < .01, △ or ▽ for p < .05, up for a gain, else nothing."""
        if self.p >= 0.05:
            return ""
        up, down = "▲▼" if self.p < 0.01 else "△▽"
        return up if self.after > self.before else down


class Row(NamedTuple):
    """One run: its changes by measure, and its place, by the first measure, among the others."""

    name: str
    changes: Mapping[str, Change]
    place: int
    place_after: int


def reranked_name(name: str, model: str) -> str:
    """``a.run`` -> ``a.run.sm_cnn``; ``a.gz`` -> ``a.sm_cnn.gz``, still compressed."""
    if (path := Path(name)).suffix.lower() in (".gz", ".bz2"):
        return f"{path.stem}.{model}{path.suffix}"
    return f"{name}.{model}"


def compare(results: Mapping[str, tuple[Values, Values]]) -> list[Row]:
    """A row for each run, by the first measure of the original run, then by name; a place is 1 +
    the number of the others with a larger value."""
    from tweetrerank.pipeline.evaluation.significance import paired_t_test

    changes = {
        name: {
            measure: Change(
                mean(values),
                mean(after[measure]),
                paired_t_test(
                    [after[measure][topic] for topic in values], [*values.values()]
                ),
            )
            for measure, values in before.items()
        }
        for name, (before, after) in results.items()
    }
    leading = {name: next(iter(of_run.values())) for name, of_run in changes.items()}

    def place(name: str, value: float) -> int:
        others = [of.before for rival, of in leading.items() if rival != name]
        return 1 + sum(round(other, _SAME) > round(value, _SAME) for other in others)

    rows = [
        Row(name, changes[name], place(name, change.before), place(name, change.after))
        for name, change in leading.items()
    ]
    return sorted(rows, key=lambda row: (row.place, row.name))


def groups(rows: Sequence[Row], size: int) -> dict[str, Sequence[Row]]:
    """The top, middle and bottom ``size`` runs of those of :func:`compare` (table 7); none of fewer
    than 3 · size."""
    if len(rows) < 3 * size:
        return {}
    middle = (len(rows) - size) // 2
    return {
        "top": rows[:size],
        "middle": rows[middle : middle + size],
        "bottom": rows[-size:],
    }


def print_report(rows: Sequence[Row], group_size: int) -> None:
    """Print the rows as a table, the average changes of groups and of all runs, and notes."""
    measures, lines = list(rows[0].changes), []
    header = [
        "run",
        *(part for m in (*measures, "R") for part in (m, "reranked", "change")),
    ]
    for row in rows:
        cells = [row.name]
        for change in row.changes.values():
            after = f"{change.after:.4f}{change.mark}"
            cells += [f"{change.before:.4f}", after, _percent(change.percent)]
        places = [
            str(row.place),
            str(row.place_after),
            f"{row.place - row.place_after:+d}",
        ]
        lines.append([*cells, *places])
    named = {
        f"average of {g} {group_size}": of for g, of in groups(rows, group_size).items()
    }
    for title, members in {
        **named,
        "average change": rows,
    }.items():  # Rows with a known change
        cells = [title]
        for measure in measures:
            known = [
                p for row in members if (p := row.changes[measure].percent) is not None
            ]
            cells += ["", "", _percent(mean(known) if known else None)]
        gained = mean(row.place - row.place_after for row in members)
        lines.append([*cells, "", "", f"{round(gained, 1) + 0.0:+.1f}"])
    # Numbers with and without a mark line up on the left.
    print_table(
        header, lines, left=[0, *(2 + 3 * index for index in range(len(measures)))]
    )
    print(
        "▲ ▼ p < .01, △ ▽ p < .05: two-sided paired t-test over topics, before against after "
        "reranking, not corrected for the number of runs\n"
        f"R: place among the {len(rows)} runs by {measures[0]}, and place after reranking this run "
        "alone; equal runs share a place, + is a gain"
    )
    for measure in measures:
        if zeros := [row.name for row in rows if row.changes[measure].percent is None]:
            print(
                f"-: {measure} was 0 before; left out of the average: {', '.join(zeros)}"
            )


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{round(value, 1) + 0.0:+.1f}%"  # + 0.0: never -0


def write_csv(
    path: Path, rows: Sequence[Row], made: Mapping[str, object], group_size: int
) -> None:
    """Write a CSV file with a line for each run, numbers unrounded, and the columns ``made``."""
    group_of = {
        row.name: name for name, of in groups(rows, group_size).items() for row in of
    }
    header = ["run", "group"]
    for measure in rows[0].changes:
        header += [
            measure,
            f"{measure} reranked",
            f"{measure} change %",
            f"{measure} p",
        ]
    with atomic_file(path) as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow([*header, "R", "R reranked", "R change", *made])
        for row in rows:
            cells: list[object] = [row.name, group_of.get(row.name, "")]
            for change in row.changes.values():
                # An unknown percentage is an empty cell.
                cells += [change.before, change.after, change.percent, change.p]
            cells += [row.place, row.place_after, row.place - row.place_after]
            writer.writerow([*cells, *made.values()])


if __name__ == "__main__":
    run("rerank")
