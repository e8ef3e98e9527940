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

from pipeline.command.errors import UsageError
from pipeline.command.main import run
from pipeline.command.options import (
    existing_file,
    fraction,
    option,
    output_file,
    positive_float,
    positive_int,
)
from pipeline.command.runtime import device_name
from pipeline.first_stage import DEFAULT_HITS, DEFAULT_METHOD, METHODS, FirstStage
from pipeline.interpolation import NORMALIZATIONS

if TYPE_CHECKING:
    from pipeline.collections.sources import Source
    from pipeline.collections.trec import Run
    from pipeline.reranking import Candidates, NeuralReranker


DEFAULT_RERANKER = "mp_hcnn"


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
    reranker: str = option("model, or none for the first stage alone", default=DEFAULT_RERANKER)
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
    fusion: str = option(
        "how scores come together: by λ, or by a trained model over those of several rankers and "
        "much else, which is learned (trees) or linear",
        default="interpolation", choices=("interpolation", "learned", "linear"),
    )  # fmt: skip
    normalize: str = option("of scores before mixing", default="minmax", choices=NORMALIZATIONS)
    hits: int | None = option(f"candidates per topic (default: {DEFAULT_HITS})", parse=positive_int)
    batch_size: int = option("pairs in a forward pass", default=256, parse=positive_int)
    threads: int | None = option("CPU threads (default: all cores)", parse=positive_int)
    device: str = option(
        "where the model runs: auto, cpu, cuda (every GPU) or cuda:N (one)", default="auto",
        parse=device_name,
    )  # fmt: skip
    precision: str = option("of the model's arithmetic", default="fp32", choices=("fp32", "bf16"))
    precomputed: str | None = option(
        "folder of precomputed posts, or none (default: the index's own for this checkpoint, if "
        "any; see pipeline.index --precompute)",
        metavar="DIR",
    )
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
    from pipeline.collections.sources import open_source
    from pipeline.collections.trec import write_run
    from pipeline.evaluation import reports

    started = time.perf_counter()
    _check(options)
    source = open_source(options.topics, options.index, options.qrels, options.data)
    output = options.output or Path("runs") / f"{source.name}.txt"
    if options.fusion == "interpolation":
        candidates, runs, found = _interpolate(options, source)
    else:
        candidates, runs, found = _fuse(options, source)
    best = list(runs.values())[-1]
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


def _interpolate(
    options: Options, source: "Source"
) -> tuple["Candidates", "dict[str, Run]", float]:
    """Candidates, the run of each stage, and when the candidates were found."""
    from pipeline.checkpoints import load_reranker
    from pipeline.precomputed import with_precomputed

    first_stage = _first_stage(options, source)
    candidates = first_stage.search(source.topics)
    found = time.perf_counter()
    runs = {f"first stage ({first_stage.name})": candidates.run}
    if options.reranker != "none":
        reranker = load_reranker(
            options.reranker, source, options.checkpoint, options.device, options.threads,
            options.idf,
        )  # fmt: skip
        reranker = with_precomputed(reranker, options.precomputed, source.index_directory)
        scores = _score(options, reranker, candidates)
        directory = reranker.checkpoint.directory
        weight, origin = first_stage.weight(options.weight, directory, options.normalize)
        runs[f"neural ({options.reranker})"] = scores
        best = first_stage.mix(candidates, scores, weight, options.normalize)
        if best is not scores:
            runs["interpolated"] = best
        print(f"λ = {weight:g} ({origin})", file=sys.stderr)
    return candidates, runs, found


def _fuse(options: Options, source: "Source") -> tuple["Candidates", "dict[str, Run]", float]:
    """The same for a learned fusion."""
    from pipeline import fusion
    from pipeline.checkpoints import load_reranker
    from pipeline.collections.trec import best_of
    from pipeline.command.runtime import pair_bar
    from pipeline.precomputed import with_precomputed

    def load(name: str, checkpoint: Path | None, precomputed: str | None) -> "NeuralReranker":
        reranker = load_reranker(
            name, source, checkpoint, options.device, options.threads, options.idf
        )
        return with_precomputed(reranker, precomputed, source.index_directory)

    def load_part(name: str, checkpoint: Path) -> "NeuralReranker":
        # A named folder of precomputed posts is the fusion's own.
        return load(name, checkpoint, "none" if options.precomputed == "none" else None)

    fusion.require_searched(source)
    learned = fusion.MODELS[options.fusion]
    model = fusion.Fusion.of(load(learned, options.checkpoint, options.precomputed), load_part)
    candidates = model.search(source)
    found = time.perf_counter()
    with pair_bar(len(candidates.keys()), options.fusion) as progress:
        scores = model.score(candidates, options.batch_size, progress)
        fused = scores.run()
    hits = options.hits or DEFAULT_HITS
    runs = scores.runs()
    runs["mean of their min-max scores"] = best_of(candidates.run, hits)
    runs[f"fused ({options.fusion})"] = best_of(fused, hits)
    return candidates, runs, found


def _check(options: Options) -> None:
    """Refuse arguments that contradict one another, all at once."""
    problems = []
    if options.candidates and (options.mu or options.set):
        problems.append("--candidates: the run is given, so --mu and --set change nothing")
    if options.mu and options.method == "bm25":
        problems.append("--mu: bm25 has no μ; use --set k1=… and --set b=…")
    if options.fusion != "interpolation":
        given = {
            "--candidates": options.candidates, "--method": options.method, "--mu": options.mu,
            "--set": options.set, "--lambda": options.weight is not None,
            "--reranker": options.reranker != DEFAULT_RERANKER,
        }  # fmt: skip
        problems += [
            f"{flag}: --fusion {options.fusion} takes the rankers that it was trained with; leave "
            f"{flag} out"
            for flag, value in given.items()
            if value
        ]
    if options.reranker == "none" and (options.checkpoint or options.weight is not None):
        problems.append("--reranker none: there is nothing for --checkpoint or --lambda to do")
    if any(c.isspace() for c in options.runtag) or not options.runtag:
        problems.append(f"--runtag: found {options.runtag!r}, expected a word without spaces")
    if problems:
        raise UsageError(problems)


def _first_stage(options: Options, source: "Source") -> FirstStage:
    """Where the candidates are from; refuses options that have nothing to say there."""
    changes = [*options.set, *([f"mu={options.mu}"] if options.mu else [])]
    found = FirstStage(source, options.candidates, options.method, changes, options.hits)
    flags = {
        "--method": options.method, "--mu": options.mu, "--set": options.set,
        "--index": options.index,
    }  # fmt: skip
    found.check(flags, options.idf)
    return found


def _score(options: Options, reranker: "NeuralReranker", candidates: "Candidates") -> "Run":
    from pipeline.command.runtime import pair_bar

    with pair_bar(len(candidates.keys()), options.reranker) as progress:
        return reranker.score(candidates, options.batch_size, progress, options.precision)


if __name__ == "__main__":
    run("search")
