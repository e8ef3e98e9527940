"""Rerank several runs of somebody else, and report what it did to each of them.

    python -m pipeline.rerank --topics mb2012 ql mine.run
    python -m pipeline.rerank --topics mb2012 trec-runs/* --skip-unknown --report runs.csv
    python -m pipeline.rerank --topics my-topics.tsv --index my-index --qrels my.qrels a.run b.run

A run's posts stay the same, their order changes. The model ``window`` reads the run's own scores;
those of other models are mixed with them. The report has the form of tables 6 and 7 of Severyn &
Moschitti (SIGIR 2015), whose model ``sm_cnn`` has a prior of the run's ranks.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pipeline.collections.trec import aligned, read_run, write_run
from pipeline.command.main import run
from pipeline.command.options import (
    argument,
    existing_file,
    fraction,
    option,
    output_file,
    positive_int,
)
from pipeline.command.ranking import ModelOptions
from pipeline.defaults import DEFAULT_HITS, DEFAULT_WINDOW, NONE
from pipeline.errors import UsageError
from pipeline.evaluation import run_report
from pipeline.evaluation.measures import Evaluator, Values, warn_of_gaps
from pipeline.evaluation.run_report import MEASURES, reranked_name
from pipeline.runtime import bar, provenance

if TYPE_CHECKING:
    from indexes.posts import Post
    from pipeline.collections.collection import Collection
    from pipeline.ranking.ranker import Ranker
    from pipeline.ranking.retrievers import Candidates


DEFAULT_WEIGHT = 0.3
"""λ. On held-out topics of 2011 to 2013 runs of any quality gain, from ql's to a learned fusion's.
The best λ is higher for weak runs, and lower for strong ones, but a run of unknown quality should
not lose; see "Reranking of runs" in scripts/results/notes.md."""


@dataclass(frozen=True)
class Options(ModelOptions):
    """What to rerank, and how."""

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
    candidates = _candidates(options, collection, jobs)
    evaluator = Evaluator(collection.qrels, MEASURES) if collection.qrels else None
    results: dict[str, tuple[Values, Values]] = {}  # Name of a run -> values before and after
    for job, found in candidates.items():
        ranking = ranker.rerank(found, partial(bar, what=job.name, unit="pair"))
        write_run(job.output, ranking.run, options.reranker)
        print(f"wrote {job.output}", file=sys.stderr)
        if evaluator:
            results[job.name] = evaluator(found.run), evaluator(ranking.run)
    if evaluator:
        _report(options, collection, ranker, results)
    else:
        print(f"no report: {collection.missing_judgments}")
    print(
        f"wrote {len(jobs)} runs to {options.output} in {time.perf_counter() - started:.1f} s",
        file=sys.stderr,
    )


def _jobs(options: Options, collection: Collection) -> list[Job]:
    """Files to read and to write; UsageError has all arguments that make no sense."""
    rules = {
        f"--index: found it with --topics {options.topics}, expected a file of topics; a "
        "collection has its own posts": options.index and not Path(options.topics).is_file(),
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
        jobs.append(Job(name, path, options.output / reranked_name(name, options.reranker)))
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
            problems.append(f"--output: {output} is one of the runs, and would be overwritten")
    if options.report and options.report.resolve() in {*inputs, *outputs}:
        problems.append(f"--report: found {options.report}, which is a run; expected another file")
    if problems:
        raise UsageError(list(dict.fromkeys(problems)))
    return jobs


def _candidates(
    options: Options, collection: Collection, jobs: Sequence[Job]
) -> dict[Job, Candidates]:
    """Candidates of all runs, which are checked before the long work begins; posts are looked up
    once, as that may read the whole collection."""
    from pipeline.ranking.retrievers import RunRetriever

    topics, hits = collection.topics, options.hits or DEFAULT_HITS
    ids = [topic.query_id for topic in topics]
    runs = {job: aligned(read_run(job.path), ids, str(job.path)) for job in jobs}
    if collection.qrels:
        collection.check_judged_posts()
    wanted = {d for run in runs.values() for query_id in ids for d in run.get(query_id, ())}
    posts = collection.find_posts(sorted(wanted))

    def known(doc_ids: Sequence[str]) -> dict[str, Post]:
        return {doc_id: posts[doc_id] for doc_id in doc_ids if doc_id in posts}

    candidates = {}
    for job, scores in runs.items():
        retriever = RunRetriever(scores, known, str(job.path), options.skip_unknown)
        found = candidates[job] = retriever.search(topics, hits)
        if cut := sum(len(known([*scores[query_id]])) > hits for query_id in found.run):
            print(
                f"{job.path}: {cut} topics have more than {hits} posts; only the first {hits} are "
                "reranked, written and measured",
                file=sys.stderr,
            )
        if collection.qrels:
            warn_of_gaps(str(job.path), collection.qrels, found.run)
    return candidates


def _report(
    options: Options,
    collection: Collection,
    ranker: Ranker,
    results: Mapping[str, tuple[Values, Values]],
) -> None:
    """Print the table, and write the file."""
    from pipeline.ranking.checkpoints import warn_of_seen

    warn_of_seen(ranker)
    rows = run_report.compare(results)
    print(
        f"{collection.name}, {len(collection.qrels or ())} judged topics, {len(rows)} runs "
        f"reranked by {ranker.name}, {ranker.description}"
    )
    run_report.print_report(rows, options.group_size)
    if options.report:
        assert ranker.model
        made = {
            "collection": collection.name,
            "reranker": options.reranker,
            "lambda": getattr(ranker.model, "weight", None),
            "checkpoint": "/".join(ranker.model.directory.resolve().parts[-2:]),
            **{n: v for n, v in provenance().items() if n in ("date", "commit", "machine")},
        }
        run_report.write_csv(options.report, rows, made, options.group_size)
        print(f"wrote {options.report}", file=sys.stderr)


def _ranker(options: Options, collection: Collection) -> Ranker:
    """The ranker of given runs; warns if nothing of the runs' own order goes into the new one."""
    from pipeline.ranking.build import ranker

    found = ranker(
        collection,
        options.reranker,
        weight=options.weight,
        default_weight=DEFAULT_WEIGHT,
        checkpoint=options.checkpoint,
        **options.loading(),
    )
    assert found.model
    if options.weight == 1 and not found.model.signals:
        print(
            f"note: this {options.reranker} does not read the ranks of a run, so with λ = 1 "
            "nothing of a run's own order is kept; --lambda below 1 mixes in its scores",
            file=sys.stderr,
        )
    return found


if __name__ == "__main__":
    run("rerank")
