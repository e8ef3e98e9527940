"""Rank posts for topics: find candidates, rescore them, mix scores, write a TREC run.

python -m pipeline.search my-posts.toml "battery drains"
python -m pipeline.search --index my-index "battery drains"
python -m pipeline.search --topics mb2012
python -m pipeline.search --topics mb2012 --candidates ql --output runs/mb2012.txt
python -m pipeline.search --topics mb2012 --reranker fusion
python -m pipeline.search --topics my-topics.tsv --index my-index
python -m pipeline.search --topics trecqa-raw --reranker sm_cnn
"""

import time
from collections.abc import Mapping, Sequence
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
    from tweetrerank.pipeline.collections.collection import Collection
    from tweetrerank.pipeline.ranking.ranker import Ranker, Ranking

# Number of posts printed for a query
SHOWN = 10


@dataclass(frozen=True)
class Options(RankingOptions):
    """Query or topics, and the files to write."""

    words: tuple[str, ...] = argument(
        "a query, whose best posts are shown; without --collection and --index the "
        "collection stands before it",
        many=True,
        required=False,
    )
    topics: str = option(
        "collection (mb2012, my-posts.toml, …) or file of topics",
        names=("--collection", "--topics"),
        metavar="NAME|FILE",
    )
    output: Path | None = option(
        "run file to write (default: runs/TOPICS.RERANKER.txt; and mp_hcnn's with the "
        "best fusion)",
        parse=output_file,
        metavar="RUN",
    )
    runtag: str = option("last column of the run", default="tweetrerank")
    show: str | None = option(
        "query_id whose best posts are shown before and after (default: the first "
        "topic), or none",
        metavar="QUERY_ID",
    )


def main(options: Options) -> None:
    """Rank the topics, write the run and print its measures, or answer one query."""
    started = time.perf_counter()
    _check_run_tag(options)
    words = list(options.words)
    if not (options.topics or words):
        raise UsageError(
            "--collection is missing: what to search, or --index and a query"
        )
    # With --index, the first word belongs to the query unless it is a path.
    # Otherwise it names the collection.
    is_query = options.index and words and not Path(words[0]).exists()
    if not (options.topics or is_query):
        options = replace(options, topics=words.pop(0))
    collection = options.open_collection()
    ranker = options.open_ranker(collection)
    if words:
        _show(ranker, " ".join(words), options)
        return
    summary = _rank_topics(options, collection, ranker)
    seconds = time.perf_counter() - started
    say(f"wrote {summary} of {len(collection.topics)} topics in {seconds:.1f} s")


def _check_run_tag(options: Options) -> None:
    tag = options.runtag
    if not tag or any(character.isspace() for character in tag):
        problem = f"--runtag: found {tag!r}, expected a word without spaces"
        raise UsageError([*options.problems(), problem])


# A query


def _show(ranker: "Ranker", query: str, options: Options) -> None:
    """Print the best posts for a query, and write the run if --output is given."""
    from tweetrerank.pipeline.collections.trec import write_run
    from tweetrerank.pipeline.text import print_posts

    ranking = ranker.rank(query, options.hits or DEFAULT_HITS)
    hits = ranking.best(SHOWN)
    if hits:
        print_posts(hits, [hit.doc_id for hit in hits])
    else:
        print(f"found no post for “{query}”")
    if options.output:
        write_run(options.output, ranking.run, options.runtag)


# Topics


def _rank_topics(options: Options, collection: "Collection", ranker: "Ranker") -> str:
    """Rank all topics, write and report the runs, and return a text that sums them up.

    With the reranker ``auto``, a mixture with a neural model may be ranked as a second
    run.
    """
    from tweetrerank.pipeline.collections.trec import write_run
    from tweetrerank.pipeline.ranking.build import neural_mixture

    rankers = [ranker]
    if options.reranker == AUTO:
        mixture = neural_mixture(ranker, **options.loading())
        if mixture is not None:
            rankers.append(mixture)
    rankings = []
    files = {}  # Last stage -> file of its run
    for member in rankers:
        ranking = _rank(options, member)
        rankings.append(ranking)
        if options.output and member is not ranker:
            continue  # The file of --output takes the first ranker's run only.
        path = options.output or _run_file(options, collection.name, member)
        write_run(path, ranking.run, options.runtag)
        files[list(ranking.stages)[-1]] = path
    if len(rankers) > 1:
        say(f"{ranker.name} reads no score of {rankers[1].name}")
    ranking = rankings[0].after(*rankings[1:])
    _report(options, collection, rankers, ranking, files)
    paths = " and ".join(str(path) for path in files.values())
    count = sum(map(len, ranking.run.values()))
    return f"{paths}: {count} results for {len(ranking.run)}"


def _rank(options: Options, ranker: "Ranker") -> "Ranking":
    if ranker.description:
        say(ranker.description)
    progress = partial(bar, what=ranker.name, unit="pair")
    return ranker.rank(hits=options.hits or DEFAULT_HITS, progress=progress)


def _report(
    options: Options,
    collection: "Collection",
    rankers: Sequence["Ranker"],
    ranking: "Ranking",
    files: Mapping[str, Path],
) -> None:
    """Print the measures of each stage, warnings, and the best posts of one topic."""
    from tweetrerank.pipeline.evaluation.measures import warn_of_gaps
    from tweetrerank.pipeline.ranking import stage_table
    from tweetrerank.pipeline.ranking.checkpoints import warn_of_seen

    if collection.qrels is None:
        print(collection.missing_judgments)
    else:
        notes = {stage: f"-> {path}" for stage, path in files.items()}
        print(replace(stage_table.evaluate(ranking), notes=notes))
        warn_of_gaps(rankers[0].name, collection.qrels, ranking.run)
        for ranker in rankers:
            warn_of_seen(ranker)
    stage_table.print_topic(ranking, collection.qrels, options.show)


def _run_file(options: Options, collection: str, ranker: "Ranker") -> Path:
    """Return the default file of a run.

    The name tells the collection, the first stage, the ranker and the checkpoint, so
    that different searches do not overwrite one another's runs.
    """
    from tweetrerank.rerankers.checkpoint import SHIPPED

    parts = [collection]
    if options.candidates:
        parts.append(f"run-{Path(options.candidates).stem}")
    elif options.method:
        parts.append(options.method)
    parts.append(ranker.name)
    if ranker.model:
        folder = ranker.model.directory.resolve()
        if not folder.is_relative_to(SHIPPED.resolve()):
            parts.append(folder.name)
    parts.append("txt")
    return Path("runs") / ".".join(filter(None, parts))


if __name__ == "__main__":
    run("search")
