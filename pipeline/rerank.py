"""Rerank several runs of somebody else, and report what it did to each of them.

    python -m pipeline.rerank --topics mb2012 ql mine.run
    python -m pipeline.rerank --topics mb2012 trec-runs/* --skip-unknown --report runs.csv
    python -m pipeline.rerank --topics my-topics.tsv --index my-index --qrels my.qrels a.run b.run

A run's posts stay the same, their order changes. The report has the form of table 6 of Severyn &
Moschitti (SIGIR 2015); a model with a prior (sm_cnn) reads the ranks of the run itself.
"""

import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.command.errors import DataError, UsageError
from pipeline.command.main import run
from pipeline.command.options import (
    argument,
    existing_file,
    fraction,
    option,
    output_file,
    positive_int,
)
from pipeline.command.runtime import device_name
from pipeline.first_stage import DEFAULT_HITS
from pipeline.interpolation import NORMALIZATIONS

if TYPE_CHECKING:
    from indexes.posts import Post
    from pipeline.collections.sources import Source
    from pipeline.collections.trec import Run
    from pipeline.evaluation.run_report import Values
    from pipeline.reranking import Candidates, NeuralReranker


@dataclass(frozen=True)
class Options:
    """What to rerank, and how."""

    runs: tuple[str, ...] = argument(
        "TREC runs; ql and rm3 name a collection's official runs", many=True
    )
    topics: str = option(
        "collection (mb2012, …) or file of topics (TREC XML or qid<TAB>text)",
        required=True, metavar="NAME|FILE",
    )  # fmt: skip
    index: Path | None = option(
        "index folder with the posts of a file of topics", parse=Path, metavar="DIR"
    )
    qrels: Path | None = option("judgments of a file of topics", parse=existing_file)
    reranker: str = option("model", default="sm_cnn")
    checkpoint: Path | None = option(
        "folder of a trained model (default: the one that has not seen these topics)",
        parse=Path, metavar="DIR",
    )  # fmt: skip
    weight: float = option(
        "λ, the neural score's share; the rest is the run's own score", default=1,
        parse=fraction, names=("--lambda",),
    )  # fmt: skip
    normalize: str = option(
        "of scores before mixing, for λ below 1", default="minmax", choices=NORMALIZATIONS
    )
    hits: int = option("posts per topic, the first of the run", default=DEFAULT_HITS,
                       parse=positive_int)  # fmt: skip
    skip_unknown: bool = option(
        "leave out posts that are not in the collection, before and after (otherwise an error)",
        flag=True,
    )
    batch_size: int = option("pairs in a forward pass", default=256, parse=positive_int)
    threads: int | None = option("CPU threads (default: all cores)", parse=positive_int)
    device: str = option(
        "where the model runs: auto, cpu, cuda (every GPU) or cuda:N (one)", default="auto",
        parse=device_name,
    )  # fmt: skip
    precision: str = option("of the model's arithmetic", default="fp32", choices=("fp32", "bf16"))
    output: Path = option(
        "folder of the reranked runs, one file each: the run's name and the model's",
        default=Path("runs/reranked"), parse=Path, metavar="DIR",
    )  # fmt: skip
    report: Path | None = option(
        "also write the report here, unrounded", parse=output_file, metavar="CSV"
    )
    data: Path | None = option("data folder (default: $TWEETRERANK_DATA)", parse=Path)


@dataclass(frozen=True)
class _Job:
    """A run, the file that it is read from and the one that it is written to."""

    name: str
    path: Path
    output: Path


def main(options: Options) -> None:
    """Read and check all runs, rerank and write one after the other, report."""
    from pipeline.checkpoints import load_reranker
    from pipeline.collections.sources import open_source

    started = time.perf_counter()
    _check(options)
    source = open_source(options.topics, options.index, options.qrels, options.data)
    jobs = _jobs(options, source)
    reranker = load_reranker(
        options.reranker, source, options.checkpoint, options.device, options.threads
    )
    _tell_lost_order(options, reranker)
    candidates = _candidates(options, source, jobs)
    results = _rerank(options, source, reranker, jobs, candidates)
    _report(options, source, reranker, results)
    print(
        f"wrote {len(jobs)} runs to {options.output} in {time.perf_counter() - started:.1f} s",
        file=sys.stderr,
    )


def _check(options: Options) -> None:
    """Refuse arguments that make no sense, all at once."""
    problems = []
    if options.index and not Path(options.topics).is_file():
        problems.append(
            f"--index: found it with --topics {options.topics}, expected a file of topics; "
            "a collection has its own posts"
        )
    if options.reranker == "none":
        problems.append("--reranker: found 'none', expected a model: nothing would be reranked")
    if options.output.exists() and not options.output.is_dir():
        problems.append(f"--output: found the file {options.output}, expected a folder")
    if problems:
        raise UsageError(problems)


def _jobs(options: Options, source: "Source") -> list[_Job]:
    """Where each run is and where it goes, refusing files that would get in each other's way."""
    from pipeline.evaluation.run_report import reranked_name

    jobs, problems = [], []
    for text in options.runs:
        official = source.runs.get(text)
        try:
            path = official or existing_file(text)
        except ValueError as error:
            problems.append(f"runs: {error}, nor has {source.name} an official run of that name")
            continue
        name = text if official else path.name
        jobs.append(_Job(name, path, options.output / reranked_name(name, options.reranker)))
    inputs = Counter(job.path.resolve() for job in jobs)
    outputs = Counter(job.output.resolve() for job in jobs)
    for job in jobs:
        if inputs[job.path.resolve()] > 1:
            problems.append(f"runs: found {job.path} more than once, expected it once")
        elif outputs[job.output.resolve()] > 1:
            problems.append(
                f"runs: found {job.path} and another that would be written to {job.output}, "
                "expected files of different names"
            )
        if job.output.resolve() in inputs:
            problems.append(f"--output: {job.output} is one of the runs, and would be overwritten")
    if options.report and options.report.resolve() in {*inputs, *outputs}:
        problems.append(f"--report: found {options.report}, which is a run; expected another file")
    if problems:
        raise UsageError(list(dict.fromkeys(problems)))
    return jobs


def _candidates(
    options: Options, source: "Source", jobs: Sequence[_Job]
) -> "dict[str, Candidates]":
    """Name of a run -> what is reranked of it; every run is read before the long work begins."""
    from pipeline.collections.trec import read_run

    runs = [read_run(job.path) for job in jobs]
    wanted = {doc_id for run in runs for doc_id in _posts_of(run, source)}
    # A collection reads all of its posts for each look-up, so there is one for all runs.
    known = source.find_posts(sorted(wanted))
    return {
        job.name: _candidates_of(options, source, job.path, run, known)
        for job, run in zip(jobs, runs, strict=True)
    }


def _candidates_of(
    options: Options, source: "Source", path: Path, run: "Run", known: "Mapping[str, Post]"
) -> "Candidates":
    from pipeline.evaluation.measures import without_results
    from pipeline.reranking import RunRetriever, priors_of

    def find_posts(doc_ids: Sequence[str]) -> "Mapping[str, Post]":
        return {doc_id: known[doc_id] for doc_id in doc_ids if doc_id in known}

    wanted = _posts_of(run, source)
    unknown = wanted - known.keys()
    # If there is nothing but unknown posts the retriever says so.
    skipped = unknown if options.skip_unknown and unknown != wanted else set()
    kept = _without(run, skipped)
    try:
        found = RunRetriever(kept, find_posts, str(path)).search(source.topics, options.hits)
    except DataError as error:
        hint = "; --skip-unknown leaves them out" if unknown and not options.skip_unknown else ""
        raise DataError(f"{error}{hint}") from None
    if skipped:
        # What is left keeps the ranks that it has in the whole run.
        found = replace(found, priors=priors_of([run]))
        print(f"{path}: {len(skipped)} of its {len(wanted)} posts are not in the collection; left "
              "out before and after", file=sys.stderr)  # fmt: skip
    if cut := sum(len(kept[query_id]) > options.hits for query_id in found.run):
        print(f"{path}: {cut} topics have more than {options.hits} posts; only the first "
              f"{options.hits} are reranked, written and measured", file=sys.stderr)  # fmt: skip
    if source.qrels and (gaps := without_results(source.qrels, found.run)):
        print(f"{path}: judged topics without a result, counted as 0 ({len(gaps)}): "
              f"{', '.join(gaps)}", file=sys.stderr)  # fmt: skip
    return found


def _posts_of(run: "Run", source: "Source") -> set[str]:
    """Every post that the run has for a topic."""
    return {doc_id for topic in source.topics for doc_id in run.get(topic.query_id, {})}


def _without(run: "Run", doc_ids: set[str]) -> "Run":
    """The run without some posts, and without topics that have no other."""
    if not doc_ids:
        return run
    left = {
        query_id: {doc_id: score for doc_id, score in scores.items() if doc_id not in doc_ids}
        for query_id, scores in run.items()
    }
    return {query_id: scores for query_id, scores in left.items() if scores}


def _rerank(
    options: Options, source: "Source", reranker: "NeuralReranker", jobs: Sequence[_Job],
    candidates: "Mapping[str, Candidates]",
) -> "dict[str, tuple[Values, Values]]":  # fmt: skip
    """Write each reranked run; name -> its values before and after, if there are judgments."""
    from tqdm import tqdm

    from pipeline.collections.trec import write_run
    from pipeline.command.runtime import pair_bar
    from pipeline.evaluation.measures import Evaluator
    from pipeline.evaluation.run_report import MEASURES
    from pipeline.reranking import interpolate

    evaluator = Evaluator(source.qrels, MEASURES) if source.qrels else None
    results: dict[str, tuple[Values, Values]] = {}
    pairs = sum(len(found.keys()) for found in candidates.values())
    with pair_bar(pairs, options.reranker) as progress:
        for job in jobs:
            found = candidates[job.name]
            run = reranker.score(found, options.batch_size, progress, options.precision)
            if options.weight != 1:
                run = interpolate(found, run, options.weight, options.normalize)
            write_run(job.output, run, options.reranker)
            tqdm.write(f"wrote {job.output}", file=sys.stderr)
            if evaluator:
                results[job.name] = evaluator(found.run), evaluator(run)
    return results


def _report(
    options: Options, source: "Source", reranker: "NeuralReranker",
    results: "Mapping[str, tuple[Values, Values]]",
) -> None:  # fmt: skip
    """Print the table and write the file, or say why there is none."""
    from pipeline.evaluation import run_report

    if source.qrels is None:
        print(f"no report: {source.missing_judgments}")
        return
    mixing = f"λ = {options.weight:g}" + (f", {options.normalize}" if options.weight != 1 else "")
    rows = run_report.compare(results)
    print(
        f"{source.name}, {len(source.qrels)} judged topics, {len(rows)} runs reranked by "
        f"{options.reranker} ({mixing})"
    )
    print(run_report.report(rows))
    if options.report:
        made = {
            "collection": source.name, "reranker": options.reranker, "lambda": options.weight,
            "normalize": options.normalize, "checkpoint": str(reranker.checkpoint.directory),
        }  # fmt: skip
        run_report.write_csv(options.report, rows, made)
        print(f"wrote {options.report}", file=sys.stderr)


def _tell_lost_order(options: Options, reranker: "NeuralReranker") -> None:
    """Warn if nothing of the runs' own order goes into the new one."""
    from rerankers import features

    signals = features.signals_of(reranker.checkpoint.model.feature_families)
    if options.weight == 1 and not signals:
        print(
            f"note: this {options.reranker} does not read the ranks of a run, so with λ = 1 "
            "nothing of a run's own order is kept; --lambda below 1 mixes in its scores",
            file=sys.stderr,
        )


if __name__ == "__main__":
    run("rerank")
