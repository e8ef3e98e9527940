"""Rank posts for topics: find candidates, rescore them, mix both scores, write a TREC run.

python -m pipeline.search --topics mb2012
python -m pipeline.search --topics mb2012 --candidates ql --output runs/mb2012.txt
python -m pipeline.search --topics mb2012 --reranker fusion
python -m pipeline.search --topics my-topics.tsv --index my-index
python -m pipeline.search --topics trecqa-raw --reranker sm_cnn
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.command.errors import UsageError
from pipeline.command.main import run
from pipeline.command.options import option, output_file
from pipeline.command.ranking import (
    DEFAULT_HITS,
    FUSIONS,
    RankingOptions,
    Setup,
    set_up,
    with_model,
)
from pipeline.command.runtime import bar

if TYPE_CHECKING:
    from pipeline.collections.trec import Run
    from pipeline.ranking.ranker import Ranking


@dataclass(frozen=True)
class Options(RankingOptions):
    """What to search, and how."""

    output: Path | None = option(
        "run file to write (default: runs/TOPICS.txt)", parse=output_file, metavar="RUN"
    )
    runtag: str = option("last column of the run", default="tweetrerank")
    show: str | None = option(
        "query_id whose best posts are shown before and after (default: the first topic), or none",
        metavar="QUERY_ID",
    )


def main(options: Options) -> None:
    """Search, rerank, interpolate, write the run, print what it is worth."""
    started = time.perf_counter()
    if any(c.isspace() for c in options.runtag) or not options.runtag:
        problem = f"--runtag: found {options.runtag!r}, expected a word without spaces"
        raise UsageError([*options.problems(), problem])
    options = with_model(options)
    setup = set_up(options)

    from pipeline.collections.trec import write_run
    from pipeline.evaluation import reports
    from pipeline.ranking.ranker import rerank

    collection = setup.collection
    ranking = rerank(
        collection.topics,
        setup.retriever,
        setup.reranker,
        setup.mixing,
        options.hits or DEFAULT_HITS,
        progress=partial(bar, what=options.reranker, unit="pair"),
    )
    if setup.reranker and options.reranker not in FUSIONS:
        print(setup.mixing, file=sys.stderr)
    runs = _stages(options, setup, ranking)
    best = list(runs.values())[-1]
    output = options.output or Path("runs") / f"{collection.name}.txt"
    write_run(output, best, options.runtag)
    reports.print_measures(collection, runs)
    reports.print_topic(collection, ranking.candidates, list(runs.values()), options.show)
    parts = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in ranking.seconds.items())
    print(
        f"wrote {output}: {sum(map(len, best.values()))} results for {len(best)} of "
        f"{len(collection.topics)} topics in {time.perf_counter() - started:.1f} s ({parts})",
        file=sys.stderr,
    )


def _stages(options: Options, setup: Setup, ranking: Ranking) -> dict[str, Run]:
    """Name of each stage -> its run; the last one is the result."""
    from pipeline.collections.trec import best_of
    from rerankers.features.judged import SIGNALS

    if options.reranker in FUSIONS:
        hits = options.hits or DEFAULT_HITS
        signals = ranking.candidates.signals.items()
        return {
            **{name: run for name, run in signals if name not in SIGNALS},
            setup.retriever.name: best_of(ranking.candidates.run, hits),
            f"fused ({options.reranker})": best_of(ranking.run, hits),
        }
    runs = {f"first stage ({setup.retriever.name})": ranking.candidates.run}
    if ranking.scores is not None:
        runs[f"neural ({options.reranker})"] = ranking.scores
        if ranking.run is not ranking.scores:
            runs["interpolated"] = ranking.run
    return runs


if __name__ == "__main__":
    run("search")
