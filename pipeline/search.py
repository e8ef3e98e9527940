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
from typing import TYPE_CHECKING

from pipeline.command.main import run
from pipeline.command.options import option, output_file
from pipeline.command.ranking import RankingOptions
from pipeline.defaults import AUTO, DEFAULT_HITS
from pipeline.errors import UsageError
from pipeline.runtime import bar

if TYPE_CHECKING:
    from pipeline.ranking.ranker import Ranker


@dataclass(frozen=True)
class Options(RankingOptions):
    """What to search, and how."""

    output: Path | None = option(
        "run file to write (default: runs/TOPICS.RERANKER.txt; and mp_hcnn's with the best fusion)",
        parse=output_file,
        metavar="RUN",
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
    ranker = options.open_ranker(collection)

    from pipeline.collections.trec import write_run
    from pipeline.ranking import reports
    from pipeline.ranking.build import neural_mixture

    rankers: list[Ranker] = [ranker]
    if options.reranker == AUTO:
        rankers += filter(None, [neural_mixture(ranker, **options.loading())])
    rankings, files = [], {}
    for each in rankers:
        if each.description:
            print(each.description, file=sys.stderr)
        progress = partial(bar, what=each.name, unit="pair")
        ranking = each.rank(hits=options.hits or DEFAULT_HITS, progress=progress)
        rankings.append(ranking)
        path = _run_file(options, collection.name, each.name)
        if options.output:  # Of the ranker alone.
            if each is not ranker:
                continue
            path = options.output
        write_run(path, ranking.run, options.runtag)
        files[[*ranking.stages][-1]] = path
    if rankings[1:]:
        print(f"{ranker.name} reads no score of {rankers[1].name}", file=sys.stderr)
    ranking = rankings[0].after(*rankings[1:])
    if collection.qrels is None:
        print(collection.missing_judgments)
    else:
        notes = {stage: f"-> {path}" for stage, path in files.items()}
        print(replace(reports.evaluate(ranking), notes=notes))
    reports.print_topic(ranking, collection.qrels, options.show)
    print(
        f"wrote {' and '.join(map(str, files.values()))}: {sum(map(len, ranking.run.values()))} "
        f"results for {len(ranking.run)} of {len(collection.topics)} topics in "
        f"{time.perf_counter() - started:.1f} s",
        file=sys.stderr,
    )


def _run_file(options: Options, collection: str, reranker: str) -> Path:
    """The default run file: searches that differ do not overwrite each other's."""
    given = f"run-{Path(options.candidates).stem}" if options.candidates else options.method
    return Path("runs") / ".".join(filter(None, [collection, given, reranker, "txt"]))


if __name__ == "__main__":
    run("search")
