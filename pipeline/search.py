"""Rank posts for topics: find candidates, rescore them, mix both scores, write a TREC run.

python -m pipeline.search --topics mb2012
python -m pipeline.search --topics mb2012 --candidates ql --output runs/mb2012.txt
python -m pipeline.search --topics my-topics.tsv --index my-index
python -m pipeline.search --topics trecqa-raw --reranker sm_cnn
"""

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.cli import (
    existing_file,
    fraction,
    option,
    output_file,
    positive_float,
    positive_int,
    run_command,
)
from pipeline.errors import UsageError
from pipeline.runtime import keep_allocations

if TYPE_CHECKING:
    from pipeline.reranking import Candidates, NeuralReranker
    from pipeline.sources import Source
    from pipeline.trec import Run

METHODS = ("ql", "bm25", "rm3", "axiom")
DEFAULT_METHOD = "ql"
DEFAULT_HITS = 1000
NORMALIZATIONS = ("minmax", "zscore", "reciprocal", "none")
UNTUNED_WEIGHT = 0.5


@dataclass(frozen=True)
class Options:
    """What to search, and how."""

    topics: str = option(
        "collection (mb2012, trecqa-raw, sample, …) or file of topics (TREC XML or qid<TAB>text)",
        required=True, metavar="NAME|FILE",
    )  # fmt: skip
    method: str | None = option(f"first stage (default: {DEFAULT_METHOD})", choices=METHODS)
    mu: float | None = option("Dirichlet smoothing of ql, rm3 and axiom", parse=positive_float)
    set: tuple[str, ...] = option(
        "change another parameter of the first stage (k1, b, fb_terms, fb_docs, original_weight, "
        "beta, …)", many=True, metavar="NAME=VALUE",
    )  # fmt: skip
    candidates: str | None = option(
        "rerank this TREC run instead of searching; ql and rm3 name a collection's official runs",
        metavar="RUN",
    )
    index: Path | None = option("index folder made by pipeline.index", parse=Path, metavar="DIR")
    qrels: Path | None = option("judgments of a file of topics", parse=existing_file)
    reranker: str = option("model, or none for the first stage alone", default="mp_hcnn")
    checkpoint: Path | None = option(
        "folder of a trained model (default: the shipped one that has not seen these topics)",
        parse=Path, metavar="DIR",
    )  # fmt: skip
    idf: str | None = option(
        "word frequencies: wordfreq, index (the collection's own) or a file (default: as trained)",
        metavar="SOURCE",
    )
    weight: float | None = option(
        "λ, the neural score's share (default: the checkpoint's tuned one; 1 where the candidates "
        "are given without scores)",
        parse=fraction, names=("--lambda",),
    )  # fmt: skip
    normalize: str = option("of scores before mixing", default="minmax", choices=NORMALIZATIONS)
    hits: int | None = option(f"candidates per topic (default: {DEFAULT_HITS})", parse=positive_int)
    batch_size: int = option("pairs in a forward pass", default=256, parse=positive_int)
    threads: int | None = option("CPU threads (default: all cores)", parse=positive_int)
    device: str = option("where the model runs", default="auto", choices=("auto", "cpu", "cuda"))
    output: Path | None = option(
        "run file to write (default: runs/TOPICS.txt)", parse=output_file, metavar="RUN"
    )
    runtag: str = option("last column of the run", default="tweetrerank")
    show: str | None = option(
        "query_id whose best posts are shown before and after (default: the first topic), or none",
        metavar="QUERY_ID",
    )
    data: Path | None = option("data folder (default: $TWEETRERANK_DATA)", parse=Path)


def main(options: Options) -> None:
    """Search, rerank, interpolate, write the run, and show what it is worth."""
    from pipeline import reports
    from pipeline.checkpoints import load_reranker
    from pipeline.reranking import interpolate
    from pipeline.sources import open_source
    from pipeline.trec import write_run

    started = time.perf_counter()
    _check(options)
    source = open_source(options.topics, options.index, options.qrels, options.data)
    _check_given(options, source)
    output = options.output or Path("runs") / f"{source.name}.txt"
    candidates = _candidates(options, source)
    found = time.perf_counter()
    runs = {f"first stage ({_first_stage(options, source)})": candidates.run}
    best = candidates.run
    if options.reranker != "none":
        reranker = load_reranker(
            options.reranker, source, options.checkpoint, options.device, options.threads,
            options.idf,
        )  # fmt: skip
        scores = _score(options, reranker, candidates)
        weight, origin = _weight(options, reranker, source)
        best = runs[f"neural ({options.reranker})"] = scores
        if weight != 1 or not _is_unscored(options, source):
            best = runs["interpolated"] = interpolate(candidates, scores, weight, options.normalize)
        print(f"λ = {weight:g} ({origin})", file=sys.stderr)
    write_run(output, best, options.runtag)
    reports.print_measures(source, runs)
    reports.print_topic(source, candidates, list(runs.values()), options.show)
    now = time.perf_counter()
    print(
        f"wrote {output}: {sum(map(len, best.values()))} results for {len(best)} of "
        f"{len(source.topics)} topics in {now - started:.1f} s "
        f"(candidates {found - started:.1f} s, reranking {now - found:.1f} s)",
        file=sys.stderr,
    )


def _check(options: Options) -> None:
    """Refuse arguments that contradict one another, all at once."""
    problems = []
    if options.candidates and (options.mu or options.set):
        problems.append("--candidates: the run is given, so --mu and --set change nothing")
    if options.mu and options.method == "bm25":
        problems.append("--mu: bm25 has no μ; use --set k1=… and --set b=…")
    if options.reranker == "none" and (options.checkpoint or options.weight is not None):
        problems.append("--reranker none: there is nothing for --checkpoint or --lambda to do")
    if any(c.isspace() for c in options.runtag) or not options.runtag:
        problems.append(f"--runtag: found {options.runtag!r}, expected a word without spaces")
    if problems:
        raise UsageError(problems)


def _check_given(options: Options, source: "Source") -> None:
    """Refuse what says how to search where the candidates are given."""
    if source.given is None:
        return
    flags = {
        "--method": options.method, "--mu": options.mu, "--set": options.set,
        "--index": options.index,
        # A run that one names has ranks, and so has best candidates.
        "--hits": None if options.candidates else options.hits,
    }  # fmt: skip
    problems = [
        f"{flag}: {source.name} is not searched, its candidates are given; leave {flag} out"
        for flag, value in flags.items()
        if value
    ]
    if options.idf == "index":
        problems.append(f"--idf index: {source.name} has no index; use wordfreq or a file")
    if problems:
        raise UsageError(problems)


def _is_unscored(options: Options, source: "Source") -> bool:
    """Whether the candidates to rank have no scores of a first stage."""
    return source.given is not None and options.candidates is None


def _first_stage(options: Options, source: "Source") -> str:
    """Where the candidates are from, for reports."""
    if _is_unscored(options, source):
        return "given, by id"
    return options.candidates or options.method or DEFAULT_METHOD


def _candidates(options: Options, source: "Source") -> "Candidates":
    from indexes.methods import METHODS
    from pipeline.reranking import Candidates, LuceneRetriever, RunRetriever
    from pipeline.settings import change
    from pipeline.trec import read_run

    hits = options.hits or DEFAULT_HITS
    if options.candidates:
        path = source.runs.get(options.candidates, Path(options.candidates))
        run = read_run(path)
        return RunRetriever(run, source.find_posts, str(path)).search(source.topics, hits)
    if source.given is not None:
        doc_ids = [doc_id for scores in source.given.values() for doc_id in scores]
        # Without scores there are no ranks to make priors of.
        return Candidates(source.topics, source.given, source.find_posts(doc_ids), priors={})
    changes = [*options.set, *([f"mu={options.mu}"] if options.mu else [])]
    method = change(METHODS[options.method or DEFAULT_METHOD](), changes)
    return LuceneRetriever(source.index(), method).search(source.topics, hits)


def _score(options: Options, reranker: "NeuralReranker", candidates: "Candidates") -> "Run":
    from pipeline.runtime import pair_bar

    with pair_bar(len(candidates.keys()), options.reranker) as progress:
        return reranker.score(candidates, options.batch_size, progress)


def _weight(options: Options, reranker: "NeuralReranker", source: "Source") -> tuple[float, str]:
    """λ and where it is from."""
    from pipeline.checkpoints import tuned_weight

    if options.weight is not None:
        return options.weight, "given"
    if _is_unscored(options, source):
        return 1.0, "nothing to mix: the candidates are given without scores"
    advice = "run scripts/tune_lambda.py for this checkpoint and normalisation"
    if source.given is not None:
        # There is no official run of the training part to tune it on.
        advice = "choose one by --lambda"
    return tuned_weight(reranker.checkpoint.directory, options.normalize) or (
        UNTUNED_WEIGHT, f"not tuned: {advice}"
    )  # fmt: skip


if __name__ == "__main__":
    keep_allocations()
    run_command(Options, main, "python -m pipeline.search", __doc__)
