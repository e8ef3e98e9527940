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
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from pipeline.command.main import run
from pipeline.command.options import option, output_file
from pipeline.command.ranking import RankingOptions
from pipeline.defaults import DEFAULT_HITS
from pipeline.errors import UsageError
from pipeline.runtime import bar


@dataclass(frozen=True)
class Options(RankingOptions):
    """What to search, and how."""

    output: Path | None = option(
        "run file to write (default: runs/TOPICS.RERANKER.txt)", parse=output_file, metavar="RUN"
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
    collection = options.open_collection()
    ranker = options.open_ranker(collection, all_stages=True)

    from pipeline.collections.trec import write_run
    from pipeline.ranking import reports

    hits = options.hits or DEFAULT_HITS
    ranking = ranker.rank(hits=hits, progress=partial(bar, what=ranker.name, unit="pair"))
    run = ranking.run
    if ranker.description:
        print(ranker.description, file=sys.stderr)
    output = options.output or _run_file(options, collection.name, ranker.name)
    write_run(output, run, options.runtag)
    if collection.qrels is None:
        print(collection.missing_judgments)
    else:
        print(replace(reports.evaluate(ranking), note=f"-> {output}"))
    reports.print_topic(ranking, collection.qrels, options.show)
    print(
        f"wrote {output}: {sum(map(len, run.values()))} results for {len(run)} of "
        f"{len(collection.topics)} topics in {time.perf_counter() - started:.1f} s",
        file=sys.stderr,
    )


def _run_file(options: Options, collection: str, reranker: str) -> Path:
    """The default run file: searches that differ do not overwrite each other's."""
    given = f"run-{Path(options.candidates).stem}" if options.candidates else options.method
    return Path("runs") / ".".join(filter(None, [collection, given, reranker, "txt"]))


if __name__ == "__main__":
    run("search")
