"""Train a challenger on the clicks of a service's log, unless it is worse than what is served.

  python -m pipeline.learn log --collection mine.toml
  python -m pipeline.learn --engine http://localhost:9200 --collection mine.toml

A job for the night. Clicks become judgments, as by pipeline.clicks. Word vectors that were adapted
to the posts are adapted again if too many words have come up since. The model window is trained on
four fifths of the queries. The others, which no night trains on, tell whether it is better than the
model that is served: on their searches of the last days, by the average precision over the judged
posts and by the mean reciprocal rank of the clicks, weighted by how rarely their places are looked
at. Unless one of both is significantly lower, the model is written as the challenger. Nothing is
replaced: pipeline.serve --challenger shows it in some searches, and pipeline.compare tells what
users make of it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.clicks import LogOptions
from pipeline.command.errors import DataError, UsageError
from pipeline.command.main import run
from pipeline.command.options import fraction, option, positive_float, positive_int

if TYPE_CHECKING:
    from pipeline.collections.clicks.log import ClickLog
    from pipeline.collections.clicks.model import ClickModel
    from pipeline.collections.collection import SearchedCollection
    from pipeline.collections.trec import Qrels, Run

MODEL = "window"

HELD_OUT = 5  # Every fifth query is never trained on
FEWEST = 10  # Held-out queries with a clicked post, without which nothing can be compared
WORSE = 0.05  # p of a fall of AP or of the clicks' MRR with which a model is no challenger

LEAST_EXAMINATION = 0.1
"""Of a place, for the weight of its clicks: one click at the end does not decide."""


@dataclass(frozen=True)
class Options(LogOptions):
    """The log, the collection that is searched, and where the challenger goes."""

    collection: str = option(
        "file of the collection that is searched", required=True, metavar="FILE"
    )
    output: Path | None = option(
        "folder of the challenger (default: challengers/COLLECTION in $TWEETRERANK_HOME)",
        parse=Path,
        metavar="DIR",
    )
    replace: bool = option("train a new one where a challenger is there already", flag=True)
    compare_days: float = option(
        "last days of the log, whose searches tell what is better",
        default=7.0,
        parse=positive_float,
    )
    drift: float = option(
        "share of the posts' words that adapted vectors may lack", default=0.1, parse=fraction
    )
    folds: int = option("held-out parts of the training", default=5, parse=positive_int)
    threads: int | None = option("CPU threads (default: all cores)", parse=positive_int)
    data: Path | None = option("data folder (default: $TWEETRERANK_DATA)", parse=Path)


def main(options: Options) -> None:
    """Read the log, train, compare, write."""
    from indexes.files import atomic_directory
    from pipeline.collections import named
    from pipeline.collections.collection import SearchedCollection, home_directory

    collection = named.find(options.collection, options.data)
    if not isinstance(collection, SearchedCollection) or collection.file is None:
        raise UsageError(f"--collection: found {options.collection}, expected the file of one")
    output = options.output or home_directory() / "challengers" / collection.key
    if (output / "config.json").exists() and not options.replace:
        print(f"{output} is still to be compared (pipeline.compare); --replace trains another one")
        return
    past, recent = read(options)
    with atomic_directory(output.with_name(f"{output.name}.learning")) as work:
        better = _learn(options, collection, past, recent, work)
        if better:
            with atomic_directory(output) as new:
                shutil.copytree(better, new, dirs_exist_ok=True)
    shutil.rmtree(output.with_name(f"{output.name}.learning"))
    if better:
        print(f"wrote {output}; compare both by users: serve --challenger {output}")
    else:
        print("worse on held-out searches: there is no challenger")


def is_held_out(query: str) -> bool:
    """Whether a query is for comparisons alone."""
    from pipeline.collections.clicks.log import normalize

    return hashlib.sha256(normalize(query).encode()).digest()[0] % HELD_OUT == 0


def read(options: Options) -> tuple[ClickLog, ClickLog]:
    """Searches of queries to train on, and those of the last days with the other queries.

    Raises DataError if one of both has too few clicks.
    """
    from pipeline.collections.clicks.log import ClickLog, with_clicks
    from pipeline.loop.impressions import impressions

    past, recent, others = ClickLog(), ClickLog(), []
    last = 0.0
    for search, impression in impressions(options.source):
        last = max(last, search["time"] or 0)
        if is_held_out(impression.query):
            others.append((search["time"] or 0, impression))
        else:
            past.add(impression)
    for time, impression in others:
        if time >= last - options.compare_days * 86_400:
            recent.add(impression)
    name, expected = str(options.source), "event with action_name click of a shown post"
    return with_clicks(past, name, expected), with_clicks(recent, name, expected)


def _learn(
    options: Options, collection: SearchedCollection, past: ClickLog, recent: ClickLog, work: Path
) -> Path | None:
    """The folder of a new model, unless it is worse than the served one on searches of others.

    ``work`` is a folder for all files.
    """
    from pipeline.collections.clicks.log import judgments
    from pipeline.evaluation.significance import print_comparison
    from pipeline.loop.impressions import fitted
    from pipeline.ranking.build import best_source
    from pipeline.ranking.checkpoints import TUNING_FILE, Tuning
    from pipeline.training.task import Options as TrainingOptions
    from pipeline.training.task import train

    model = fitted(past)
    judged = judgments(past, model.relevance)
    of_recent = fitted(recent, known=model.examination)
    held_out = judgments(recent, of_recent.relevance)
    held_out = {q: grades for q, grades in held_out.items() if any(grades.values())}
    print(
        f"{past.impressions:,} searches, {len(judged):,} queries with judgments; "
        f"{len(held_out):,} others of the last {options.compare_days:g} days to compare models on"
    )
    if len(held_out) < FEWEST:
        raise DataError(
            f"{options.source}: found {len(held_out)} held-out queries with a clicked post, "
            f"expected {FEWEST} or more to tell what is better; wait for more searches"
        )
    adapted = _adapted(options, collection, work)
    training = _judged(adapted, past, judged, work / "train")
    new = work / "model"
    how = TrainingOptions(
        model=MODEL,
        folds=options.folds,
        threads=options.threads,
        output=new,
        forget_topics=True,  # Queries are kept as long as the log is, not longer.
    )
    train(how, training)
    clicks = _clicks(recent, model)
    champion = best_source(collection).folder
    figures = [
        (name, _figures(_judged(of, recent, held_out, work / "compare"), folder, held_out, clicks))
        for name, of, folder in (("served", collection, champion), ("new", adapted, new))
    ]
    print(f"{len(held_out)} held-out queries:")
    print_comparison(figures)
    if _is_worse(figures[0][1], figures[1][1]):
        return None
    # Its gate is this comparison, and then users: searches are to use it once it is promoted.
    tuning = Tuning.load(new / TUNING_FILE)
    dataclasses.replace(tuning, weight=1.0).save(new / TUNING_FILE)
    return new


def _is_worse(old: Figures, new: Figures) -> bool:
    """Whether AP is lower, or clicked posts are further down, for sure.

    AP knows nothing of posts that were not shown; they must not take the place of clicked ones. The
    queries are few: to ask for a higher AP would turn away every other model that is better by a
    little. Users decide about those.
    """
    from pipeline.evaluation.significance import randomization_test

    values = (([*old[name].values()], [*new[name].values()]) for name in old)
    return any(sum(b) < sum(a) and randomization_test(a, b) < WORSE for a, b in values)


def _adapted(options: Options, collection: SearchedCollection, work: Path) -> SearchedCollection:
    """The collection, with word vectors of now if the posts have many words that its own lack."""
    from pipeline import adapt
    from rerankers.text.spaces import description_of

    space, path = collection.adapted_space, collection.adapted_path
    if space is None or path is None:
        return collection
    unknown, _ = adapt.unknown_words(collection, space)
    print(f"{unknown:.1%} of the posts' words have no adapted vector", file=sys.stderr)
    if unknown <= options.drift:
        return collection
    again = dataclasses.replace(collection, own_adapted=work / "now.adapted.safetensors")
    teacher = description_of(path).get("teacher", "minilm")
    adapt.adapt(adapt.Options(teacher=teacher, threads=options.threads), again)
    return dataclasses.replace(again)  # Which reads the new file.


def _judged(
    collection: SearchedCollection, log: ClickLog, qrels: Qrels, folder: Path
) -> SearchedCollection:
    """The collection with these judgments and their topics, in files of a folder."""
    from pipeline.clicks import write_judgments
    from pipeline.collections.own import JUDGED_MEASURES

    folder.mkdir(exist_ok=True)
    topics, judged = folder / "topics.tsv", folder / "qrels.txt"
    write_judgments(topics, judged, log, qrels)
    return dataclasses.replace(
        collection,
        topics_path=topics,
        qrels_path=judged,
        training_path=None,
        training_qrels_path=None,
        measures=JUDGED_MEASURES,
        judged_only=True,
    )


Figures = Mapping[str, Mapping[str, float]]  # Measure -> query_id -> value

Clicks = Mapping[str, Mapping[str, float]]
"""query_id -> doc_id -> clicks, each divided by the examination of its place."""


def _clicks(log: ClickLog, model: ClickModel) -> Clicks:
    query_ids = [query.topic.query_id for query in log.queries]
    found: dict[str, dict[str, float]] = {}
    rows = log.click.nonzero()[0]
    for pair, place in zip(log.pair[rows].tolist(), log.position[rows].tolist(), strict=True):
        number, doc_id = log.pairs[pair]
        known = model.examination[min(place, len(model.examination) - 1)]
        of_query = found.setdefault(query_ids[number], {})
        of_query[doc_id] = of_query.get(doc_id, 0) + 1 / max(LEAST_EXAMINATION, float(known))
    return found


def _figures(
    collection: SearchedCollection, folder: Path, qrels: Qrels, clicks: Clicks
) -> dict[str, dict[str, float]]:
    """AP over the judged posts and MRR of the clicks, query_id -> value, of a model's ranking."""
    from pipeline.evaluation.measures import Evaluator
    from pipeline.ranking.build import ranker
    from pipeline.training.fusion import WINDOW
    from rerankers import checkpoint as checkpoints

    name = checkpoints.load(folder).name
    found: Run = ranker(collection, name, checkpoint=folder).rank(hits=WINDOW).run
    [values] = Evaluator(qrels, [collection.measures[0]])(found).values()
    reciprocal = {}
    for query_id in values:
        run = found.get(query_id, {})
        ranks = {doc_id: rank for rank, doc_id in enumerate(sorted(run, key=lambda d: -run[d]), 1)}
        weights = clicks.get(query_id, {})
        total = sum(weight / ranks[d] for d, weight in weights.items() if d in ranks)
        reciprocal[query_id] = total / max(1e-9, sum(weights.values()))
    return {"AP of judged": values, "MRR of clicks": reciprocal}


if __name__ == "__main__":
    run("learn")
