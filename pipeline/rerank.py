"""Rerank runs of other systems, and report how the measures of each run change.

    python -m pipeline.rerank --topics mb2012 ql mine.run
    python -m pipeline.rerank --topics mb2012 trec-runs/* --skip-unknown --report a.csv
    python -m pipeline.rerank --topics my.tsv --index my-index --qrels my.qrels a.run

A reranked run has the same posts in another order. The model ``window`` reads the run's
own scores. The scores of other models are mixed with them. The report has the form of
tables 6 and 7 of Severyn & Moschitti (SIGIR 2015). Their model, ``sm_cnn``, reads the
ranks of the run as a prior.
"""

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tweetrerank.indexes.posts import Post
from tweetrerank.pipeline.collections.collection import Collection
from tweetrerank.pipeline.collections.trec import Run, aligned, read_run, write_run
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
from tweetrerank.pipeline.evaluation.measures import Evaluator, Values, warn_of_gaps
from tweetrerank.pipeline.evaluation.rerank_report import (
    compare,
    print_report,
    write_csv,
)
from tweetrerank.pipeline.ranking.ranking_options import ModelOptions
from tweetrerank.pipeline.runtime import bar, provenance
from tweetrerank.pipeline.text import say
from tweetrerank.pipeline.usage_error import UsageError

if TYPE_CHECKING:
    from tweetrerank.pipeline.ranking.ranker import Ranker
    from tweetrerank.pipeline.ranking.retrievers import Candidates

# Measures of the report. The first one decides the places of the runs.
MEASURES = ("P@30", "AP")

DEFAULT_WEIGHT = 0.3
"""Default of λ, chosen so that a run of unknown quality does not lose.

With it, runs of any quality gained on held-out topics of 2011 to 2013. The best λ is
higher for weak runs, and lower for strong runs such as those of a learned fusion. See
"Reranking of runs" in scripts/results/notes.md.
"""


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
        "runs of the top, middle and bottom groups, whose average changes are reported "
        "if there are enough runs for all three",
        default=30,
        parse=positive_int,
    )


class Job(NamedTuple):
    """One run to rerank: its name, its file, and the file to write."""

    name: str
    path: Path
    output: Path


def main(options: Options) -> None:
    """Read and check all runs, rerank and write each of them, and print the report.

    Without judgments there is no report.
    """
    started = time.perf_counter()
    collection = options.open_collection()
    jobs = _jobs(options, collection)
    ranker = _ranker(options, collection)
    candidates = _candidates(options, collection, jobs)
    evaluator = None
    if collection.qrels:
        evaluator = Evaluator(collection.qrels, MEASURES)
    # Name of a run -> its measures before and after reranking
    results: dict[str, tuple[Values, Values]] = {}
    for job, candidates_of_run in candidates.items():
        progress = partial(bar, what=job.name, unit="pair")
        ranking = ranker.rerank(candidates_of_run, progress)
        write_run(job.output, ranking.run, options.reranker)
        say(f"wrote {job.output}")
        if evaluator:
            before = evaluator(candidates_of_run.run)
            results[job.name] = (before, evaluator(ranking.run))
    if evaluator:
        _report(options, collection, ranker, results)
    else:
        print(f"no report: {collection.missing_judgments}")
    seconds = time.perf_counter() - started
    say(f"wrote {len(jobs)} runs to {options.output} in {seconds:.1f} s")


# Files


def reranked_name(name: str, model: str) -> str:
    """Return the file name of a reranked run, which has the model's name in it.

    ``a.run`` becomes ``a.run.sm_cnn``. ``a.gz`` becomes ``a.sm_cnn.gz``, so that the
    ending still shows the compression.
    """
    path = Path(name)
    if path.suffix.lower() in (".gz", ".bz2"):
        return f"{path.stem}.{model}{path.suffix}"
    return f"{name}.{model}"


def _jobs(options: Options, collection: Collection) -> list[Job]:
    """Return a job for each run.

    Raises UsageError listing every problem found in the options.
    """
    problems = []
    if options.index and not Path(options.topics).is_file():
        problems.append(
            f"--index: found it with --topics {options.topics}, expected a file of "
            "topics; a collection has its own posts"
        )
    if options.reranker == NONE:
        problems.append(
            "--reranker: found 'none', expected a model: nothing would be reranked"
        )
    if options.output.exists() and not options.output.is_dir():
        problems.append(f"--output: found the file {options.output}, expected a folder")
    jobs = []
    for name in options.runs:
        try:
            jobs.append(_job(name, options, collection))
        except ValueError as error:
            problems.append(
                f"runs: {error}, nor has {collection.name} an official run of that name"
            )
    problems += _file_problems(options, jobs)
    if problems:
        raise UsageError(list(dict.fromkeys(problems)))
    return jobs


def _job(text: str, options: Options, collection: Collection) -> Job:
    """Return the job for a run, which is the name of an official run or a file.

    Raises ValueError if it is neither.
    """
    official = collection.runs.get(text)
    if official:
        path = official
        name = text
    else:
        path = existing_file(text)
        name = path.name
    return Job(name, path, options.output / reranked_name(name, options.reranker))


def _file_problems(options: Options, jobs: Sequence[Job]) -> list[str]:
    """Return a message for each file that would be read or written twice."""
    inputs = Counter(job.path.resolve() for job in jobs)
    outputs = Counter(job.output.resolve() for job in jobs)
    problems = []
    for job in jobs:
        output = job.output.resolve()
        if inputs[job.path.resolve()] > 1:
            problems.append(f"runs: found {job.path} more than once, expected it once")
        elif outputs[output] > 1:
            problems.append(
                f"runs: found {job.path} and another that would be written to "
                f"{job.output}, expected files of different names"
            )
        if output in inputs:
            problems.append(
                f"--output: {job.output} is one of the runs, and would be overwritten"
            )
    report = options.report
    if report and (report.resolve() in inputs or report.resolve() in outputs):
        problems.append(
            f"--report: found {report}, which is a run; expected another file"
        )
    return problems


# Reranking


def _ranker(options: Options, collection: Collection) -> "Ranker":
    """Return the ranker, and warn if it ignores the order of the runs."""
    from tweetrerank.pipeline.ranking.build import RankerSpecification

    specification = RankerSpecification(
        collection,
        options.reranker,
        weight=options.weight,
        default_weight=DEFAULT_WEIGHT,
        checkpoint=options.checkpoint,
        **options.loading(),
    )
    ranker = specification.build()
    assert ranker.model
    if options.weight == 1 and not ranker.model.signals:
        say(
            f"note: this {options.reranker} does not read the ranks of a run, so with "
            "λ = 1 nothing of a run's own order is kept; --lambda below 1 mixes in its "
            "scores"
        )
    return ranker


def _candidates(
    options: Options, collection: Collection, jobs: Sequence[Job]
) -> dict[Job, "Candidates"]:
    """Return the candidates of each run.

    All runs are read and checked first, so that a bad file is reported before the long
    work begins. The posts of all runs are looked up together, because a look-up may
    read the whole collection.
    """
    from tweetrerank.pipeline.ranking.retrievers import RunRetriever

    hits = options.hits or DEFAULT_HITS
    query_ids = [topic.query_id for topic in collection.topics]
    runs = {job: aligned(read_run(job.path), query_ids, str(job.path)) for job in jobs}
    if collection.qrels:
        collection.check_judged_posts()
    posts = collection.find_posts(sorted(_doc_ids(runs.values(), query_ids)))

    def find_posts(doc_ids: Sequence[str]) -> dict[str, Post]:
        return {doc_id: posts[doc_id] for doc_id in doc_ids if doc_id in posts}

    candidates = {}
    for job, scores in runs.items():
        place = str(job.path)
        retriever = RunRetriever(scores, find_posts, place, options.skip_unknown)
        candidates[job] = retriever.search(collection.topics, hits)
        run_of_topics = candidates[job].run
        sizes = [len(find_posts(list(scores[topic]))) for topic in run_of_topics]
        cut = sum(size > hits for size in sizes)
        if cut:
            say(
                f"{place}: {cut} topics have more than {hits} posts; only the first "
                f"{hits} are reranked, written and measured"
            )
        if collection.qrels:
            warn_of_gaps(place, collection.qrels, run_of_topics)
    return candidates


def _doc_ids(runs: Iterable[Run], query_ids: Sequence[str]) -> set[str]:
    """Return the ids of the posts that any run has for one of these topics."""
    doc_ids: set[str] = set()
    for scores in runs:
        for query_id in query_ids:
            doc_ids.update(scores.get(query_id, ()))
    return doc_ids


# The report


def _report(
    options: Options,
    collection: Collection,
    ranker: "Ranker",
    results: Mapping[str, tuple[Values, Values]],
) -> None:
    """Print the report, and write the file of --report if one is given."""
    from tweetrerank.pipeline.ranking.checkpoints import warn_of_seen

    warn_of_seen(ranker)
    rows = compare(results)
    print(
        f"{collection.name}, {len(collection.qrels or ())} judged topics, {len(rows)} "
        f"runs reranked by {ranker.name}, {ranker.description}"
    )
    print_report(rows, options.group_size)
    if options.report:
        assert ranker.model
        environment = provenance()
        origin = {
            "collection": collection.name,
            "reranker": options.reranker,
            "lambda": getattr(ranker.model, "weight", None),
            "checkpoint": "/".join(ranker.model.directory.resolve().parts[-2:]),
            "date": environment["date"],
            "commit": environment["commit"],
            "machine": environment["machine"],
        }
        write_csv(options.report, rows, origin, options.group_size)
        say(f"wrote {options.report}")


if __name__ == "__main__":
    run("rerank")
