"""Rank posts for topics: find candidates, rescore them, mix both scores, write a TREC run.

python -m pipeline.search my-posts.toml "battery drains"
python -m pipeline.search --index my-index "battery drains"
python -m pipeline.search --topics mb2012
python -m pipeline.search --topics mb2012 --candidates ql --output runs/mb2012.txt
python -m pipeline.search --topics mb2012 --reranker fusion
python -m pipeline.search --topics my-topics.tsv --index my-index
python -m pipeline.search --topics trecqa-raw --reranker sm_cnn
"""

import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tweetrerank.pipeline.command.main import run
from tweetrerank.pipeline.command.options import argument, option, output_file
from tweetrerank.pipeline.defaults import AUTO, DEFAULT_HITS
from tweetrerank.pipeline.ranking.ranking_options import RankingOptions
from tweetrerank.pipeline.runtime import bar
from tweetrerank.pipeline.text import say
from tweetrerank.pipeline.usage_error import UsageError

if TYPE_CHECKING:
    from tweetrerank.pipeline.ranking.ranker import Ranker

SHOWN = 10  # Posts for a query


@dataclass(frozen=True)
class Options(RankingOptions):
    """Query or topics, and the files to write."""

    words: tuple[str, ...] = argument(
        "a query, whose best posts are shown; without --collection and --index the collection "
        "stands before it",
        many=True,
        required=False,
    )
    topics: str = option(
        "collection (mb2012, my-posts.toml, …) or file of topics",
        names=("--collection", "--topics"),
        metavar="NAME|FILE",
    )
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
    words = [*options.words]
    if not (options.topics or words):
        raise UsageError(
            "--collection is missing: what to search, or --index and a query"
        )
    if not options.topics and not (options.index and not Path(words[0]).exists()):
        options = replace(options, topics=words.pop(0))
    collection = options.open_collection()
    ranker = options.open_ranker(collection)
    if words:
        _show(ranker, " ".join(words), options)
        return

    from tweetrerank.pipeline.collections.trec import write_run
    from tweetrerank.pipeline.evaluation.measures import warn_of_gaps
    from tweetrerank.pipeline.ranking import stage_table
    from tweetrerank.pipeline.ranking.build import neural_mixture
    from tweetrerank.pipeline.ranking.checkpoints import warn_of_seen

    rankers: list[Ranker] = [ranker]
    if options.reranker == AUTO:
        rankers += filter(None, [neural_mixture(ranker, **options.loading())])
    rankings, notes = [], {}
    for each in rankers:
        if each.description:
            say(each.description)
        progress = partial(bar, what=each.name, unit="pair")
        rankings.append(each.rank(hits=options.hits or DEFAULT_HITS, progress=progress))
        if each is ranker or not options.output:  # A named file is of the ranker alone.
            path = options.output or _run_file(options, collection.name, each)
            write_run(path, rankings[-1].run, options.runtag)
            notes[[*rankings[-1].stages][-1]] = f"-> {path}"
    if rankings[1:]:
        say(f"{ranker.name} reads no score of {rankers[1].name}")
    ranking = rankings[0].after(*rankings[1:])
    if collection.qrels is None:
        print(collection.missing_judgments)
    else:
        print(replace(stage_table.evaluate(ranking), notes=notes))
        warn_of_gaps(ranker.name, collection.qrels, ranking.run)
        for each in rankers:
            warn_of_seen(each)
    stage_table.print_topic(ranking, collection.qrels, options.show)
    written = " and ".join(note.removeprefix("-> ") for note in notes.values())
    results = f"{sum(map(len, ranking.run.values()))} results for {len(ranking.run)}"
    topics = f"{len(collection.topics)} topics in {time.perf_counter() - started:.1f} s"
    say(f"wrote {written}: {results} of {topics}")


def _show(ranker: "Ranker", query: str, options: Options) -> None:
    """Print the best posts for one query."""
    from tweetrerank.pipeline.collections.trec import write_run
    from tweetrerank.pipeline.text import print_posts

    ranking = ranker.rank(query, options.hits or DEFAULT_HITS)
    if hits := ranking.best(SHOWN):
        print_posts(hits, [hit.doc_id for hit in hits])
    else:
        print(f"found no post for “{query}”")
    if options.output:
        write_run(options.output, ranking.run, options.runtag)


def _run_file(options: Options, collection: str, ranker: "Ranker") -> Path:
    """The default run file: searches that differ do not overwrite each other's."""
    from tweetrerank.rerankers.checkpoint import SHIPPED

    given = (
        f"run-{Path(options.candidates).stem}" if options.candidates else options.method
    )
    weights = ranker.model.directory.resolve() if ranker.model else SHIPPED
    own = "" if weights.is_relative_to(SHIPPED.resolve()) else weights.name
    return Path("runs") / ".".join(
        filter(None, [collection, given, ranker.name, own, "txt"])
    )


if __name__ == "__main__":
    run("search")
