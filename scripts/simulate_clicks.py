#!/usr/bin/env python3
"""Simulate users of a judged collection, and what the loop learns from their clicks.

    python scripts/simulate_clicks.py --part test --collection politifact-tweets-train
    python scripts/simulate_clicks.py --part nights --collection politifact-tweets-train
    python scripts/simulate_clicks.py --part cost

Users look for a topic that is drawn at random, and see ten posts. Those of the cascade model read
from the top, and mostly leave after a click on a relevant post; those of the position-based model
look at place k with the probability 1/k. Both click on seven of ten relevant posts that they look
at, and on one of twenty others. Half of the users are of each kind.

test: how often a challenger is promoted in a week of 20,000 searches, a fifth of them interleaved,
by its difference from the champion in AP, and after how many clicked searches. Its ranking is the
champion's with noise, better or worse by a part of the true judgments.
nights: AP on topics that nobody searched for, of the served model, of one that has learned from the
clicks of 1, 3 and 7 nights, and of one that was trained on the true judgments of the same topics.
The served model is window/all of $TWEETRERANK_HOME/checkpoints, if it is there, or the shipped one,
which has seen the judgments of named collections.
cost: time of a logged search that the log takes, on its way to the answer.
"""

from __future__ import annotations

import dataclasses
import hashlib
import random
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from pipeline.command.options import (
    non_negative_int,
    option,
    positive_int,
    run_command,
)

if TYPE_CHECKING:
    from pipeline.collections.collection import SearchedCollection
    from pipeline.collections.trec import Qrels, Run

WEEK = 20_000
SHARE = 0.2
LEVEL = 0.95
SHOWN = 10
CLICK, MISTAKE, LEAVE = 0.7, 0.05, 0.8
DIFFERENCES = (-0.03, -0.01, 0.0, 0.01, 0.03, 0.05)
NIGHTS = (1, 3, 7)
FOLDS = 2
"""Of the trainings, whose own figures are not looked at."""


@dataclass(frozen=True)
class Options:
    """The part, the collection, and how much of it."""

    part: str = option("what to simulate", required=True, choices=("test", "nights", "cost"))
    collection: str = option(
        "judged collection", default="politifact-tweets-train", metavar="NAME|FILE"
    )
    weeks: int = option("simulated weeks of each challenger", default=100, parse=positive_int)
    searches: int = option("searches of a week", default=WEEK, parse=positive_int)
    seed: int = option("seed of all users", default=1, parse=non_negative_int)
    threads: int | None = option("CPU threads (default: all cores)", parse=positive_int)
    data: Path | None = option("data folder (default: $TWEETRERANK_DATA)", parse=Path)


def main(options: Options) -> None:
    """Simulate one part."""
    {"test": weeks, "nights": nights, "cost": cost}[options.part](options)


def clicks(relevant: Sequence[bool], users: random.Random) -> list[int]:
    """The clicked places of a page, from 0."""
    is_cascade, found = users.random() < 0.5, []
    for place, is_relevant in enumerate(relevant):
        if not is_cascade and users.random() * (place + 1) > 1:
            continue
        if users.random() < (CLICK if is_relevant else MISTAKE):
            found.append(place)
            if is_cascade and is_relevant and users.random() < LEAVE:
                break
    return found


def _collection(options: Options) -> tuple[SearchedCollection, Qrels]:
    from pipeline.collections.collection import SearchedCollection
    from pipeline.collections.named import find

    collection = find(options.collection, options.data)
    assert isinstance(collection, SearchedCollection)
    assert collection.training_qrels
    return collection, collection.training_qrels


# --- The test -------------------------------------------------------------------------------------


def weeks(options: Options) -> None:
    """Promotions of challengers by their difference in AP."""
    import numpy as np

    from pipeline.command.runtime import print_table
    from pipeline.evaluation.measures import Evaluator, mean
    from pipeline.ranking.build import ranker

    collection, qrels = _collection(options)
    found = ranker(collection, "none").rank(collection.training_topics, 100).run
    found = {q: scores for q, scores in found.items() if any(qrels.get(q, {}).values())}
    qrels = {q: qrels[q] for q in found}
    evaluator = Evaluator(qrels, ["AP"])

    def ap(run: Run) -> float:
        return mean(evaluator(run)["AP"].values())

    noise = np.random.default_rng(options.seed)
    sizes = {q: noise.standard_normal(len(scores)) for q, scores in found.items()}

    def changed(part: float) -> Run:
        """The ranking with noise, and a part of the truth."""
        return {
            q: {
                doc_id: score / (np.std([*scores.values()]) or 1)
                + 0.3 * float(sizes[q][row])
                + part * (qrels[q].get(doc_id, 0) > 0)
                for row, (doc_id, score) in enumerate(scores.items())
            }
            for q, scores in found.items()
        }

    base, rows = ap(found), []
    for difference in DIFFERENCES:
        challenger = changed(_solved(lambda part: ap(changed(part)) - base, difference))
        stops, seen = [], []
        for week in range(options.weeks):
            users = random.Random(options.seed * 10_000 + week)
            stop, clicked = _week(found, challenger, qrels, users, int(options.searches * SHARE))
            stops.append(stop)
            seen.append(clicked)
        reached = [stop for stop in stops if stop is not None]
        median = np.median([stop or np.inf for stop in stops])
        rows.append(
            (
                f"{ap(challenger) - base:+.3f}",
                f"{len(reached)} of {len(stops)}",
                f"{median:.0f}",
                f"{np.mean(seen):.0f}",
            )
        )
        print(rows[-1], file=sys.stderr)
    print(f"{collection.name}: {len(qrels)} topics, AP of the champion {base:.4f}")
    print_table(("AP", "promoted", "median clicked searches", "clicked searches a week"), rows)


def _solved(value: Callable[[float], float], target: float) -> float:
    """The argument at which a rising function has a value."""
    low, high = -4.0, 4.0
    for _ in range(25):
        middle = (low + high) / 2
        low, high = (middle, high) if value(middle) < target else (low, middle)
    return low


def _week(
    champion: Run, challenger: Run, qrels: Qrels, users: random.Random, searches: int
) -> tuple[int | None, int]:
    """Clicked searches until promotion (None if there is none), and those of the whole week."""
    from pipeline.collections.trec import ranked
    from pipeline.loop.comparison import Comparison
    from pipeline.loop.interleaving import credit, team_draft

    topics = [*champion]
    rows = {q: {doc_id: row for row, doc_id in enumerate(champion[q])} for q in topics}
    orders = {
        # More posts than the page has do not change it.
        q: [
            [rows[q][doc_id] for doc_id, _ in ranked(run[q])[: 2 * SHOWN]]
            for run in (champion, challenger)
        ]
        for q in topics
    }
    ids = {q: [*champion[q]] for q in topics}
    state, clicked, stop = Comparison(), 0, None
    for _ in range(searches):
        q = users.choice(topics)
        order, teams = team_draft(*orders[q], str(users.random()))
        shown = [ids[q][row] for row in order[:SHOWN]]
        at = clicks([qrels[q].get(doc_id, 0) > 0 for doc_id in shown], users)
        if not at:
            continue
        clicked += 1
        state = state.after([credit(shown, teams[:SHOWN], {shown[place] for place in at})])
        if stop is None and clicked % 10 == 0 and state.is_agreed(LEVEL):
            stop = clicked
    return stop, clicked


# --- Nights ---------------------------------------------------------------------------------------


def nights(options: Options) -> None:
    """AP on topics that nobody searched for, after nights of learning."""
    from pipeline.collections.own import read_collection
    from pipeline.command.runtime import print_table
    from pipeline.learn import Options as LearnOptions
    from pipeline.learn import main as learn
    from pipeline.ranking.build import ranker
    from pipeline.train import Options as TrainOptions
    from pipeline.train import train

    collection, qrels = _collection(options)
    topics = [topic for topic in collection.training_topics if any(qrels[topic.query_id].values())]
    searched = [topic for topic in topics if _is_searched(topic.query_id)]
    held_out = {t.query_id: qrels[t.query_id] for t in topics if not _is_searched(t.query_id)}
    with TemporaryDirectory() as name:
        folder = Path(name)
        posts = [str(path.absolute()) for path in collection.post_paths]
        (folder / "simulated.toml").write_text(f'posts = {posts}\ntopics = "held_out.tsv"\n')
        lines = [f"{t.query_id}\t{t.text}\n" for t in topics if t.query_id in held_out]
        (folder / "held_out.tsv").write_text("".join(lines))
        own = read_collection(folder / "simulated.toml")
        run = ranker(own, "window").rank(searched, 100).run
        rows = [("served", _ap(own, None, topics, held_out))]
        for night in NIGHTS:
            log, users = folder / f"log-{night}", random.Random(options.seed)
            _write_log(log, run, searched, qrels, users, night * options.searches // 7)
            output = folder / f"challenger-{night}"
            learn(
                LearnOptions(
                    log=log,
                    collection=str(folder / "simulated.toml"),
                    output=output,
                    folds=FOLDS,
                    threads=options.threads,
                )
            )
            is_there = output.exists()
            label = f"night {night}" if is_there else f"night {night}: no challenger"
            rows.append((label, _ap(own, output if is_there else None, topics, held_out)))
        judged = folder / "judged"
        truth = dataclasses.replace(own, **_files(folder, searched, qrels))
        train(
            TrainOptions(model="window", output=judged, folds=FOLDS, threads=options.threads), truth
        )
        rows.append(("trained on the judgments", _ap(own, judged, topics, held_out)))
    base, best = rows[0][1], rows[-1][1]
    print(f"{collection.name}: {len(searched)} searched topics, {len(held_out)} held out")
    print_table(
        ("model", "AP", "share of the gain"),
        [(label, f"{ap:.4f}", f"{(ap - base) / (best - base):.0%}") for label, ap in rows],
    )


def _is_searched(query_id: str) -> bool:
    return hashlib.sha256(query_id.encode()).digest()[0] % 10 >= 3


def _files(folder: Path, topics: Sequence[Any], qrels: Qrels) -> dict[str, Path]:
    lines = [f"{topic.query_id}\t{topic.text}\n" for topic in topics]
    (folder / "topics.tsv").write_text("".join(lines))
    grades = [(t.query_id, *item) for t in topics for item in qrels[t.query_id].items()]
    (folder / "qrels.txt").write_text("".join(f"{q} 0 {d} {grade}\n" for q, d, grade in grades))
    return {"topics_path": folder / "topics.tsv", "qrels_path": folder / "qrels.txt"}


def _ap(
    collection: SearchedCollection, folder: Path | None, topics: Sequence[Any], held_out: Qrels
) -> float:
    from pipeline.evaluation.measures import Evaluator, mean
    from pipeline.ranking.build import ranker

    wanted = [topic for topic in topics if topic.query_id in held_out]
    run = ranker(collection, "window", checkpoint=folder).rank(wanted, 100).run
    return mean(Evaluator(held_out, ["AP"])(run)["AP"].values())


def _write_log(
    folder: Path,
    run: Run,
    topics: Sequence[Any],
    qrels: Qrels,
    users: random.Random,
    searches: int,
) -> None:
    """The log of a service that shows a ranking, and the events of its users."""
    from pipeline.collections.trec import ranked
    from pipeline.loop.log import EVENTS, SEARCHES, LogWriter

    log, texts = LogWriter(folder, is_plain=True), {t.query_id: t.text for t in topics}
    for query_id in users.choices([q for q in texts if run.get(q)], k=searches):
        search = record(texts[query_id], dict(ranked(run[query_id])))
        log.write(SEARCHES, search)
        shown = search["shown"]
        for place in clicks([qrels[query_id].get(d, 0) > 0 for d in shown], users):
            event = {"search_id": search["search_id"], "time": time.time(), "action": "click"}
            more = {"object_id": shown[place], "position": place + 1, "client_id": None}
            log.write(EVENTS, event | more)
        if len(log._queues[0]._waiting) > 5000:
            time.sleep(0.3)
    log.close()


def record(query: str, scores: Mapping[str, float]) -> dict[str, Any]:
    """A search in the log's form, of a ranking that is shown as it is."""
    ids = [*scores]
    return {
        "search_id": uuid.uuid4().hex,
        "time": time.time(),
        "index": "simulated",
        "model": "window",
        "version": "served",
        "query": query,
        "client_id": None,
        "ids": ids,
        "objects": None,
        "first_stage": [*scores.values()],
        "scores": [*scores.values()],
        "ranks": [*range(1, len(ids) + 1)],
        "start": 0,
        "shown": ids[:SHOWN],
        "challenger": None,
        "teams": None,
    }


# --- Cost -----------------------------------------------------------------------------------------


def cost(options: Options) -> None:
    """What the log adds to a search of a window of 100, whose scores take no time here."""
    import asyncio
    import gc

    import numpy as np
    from orjson import Fragment

    from pipeline.loop.log import LogWriter
    from pipeline.service.formats.base import ScoreRequest, ScoreResponse
    from pipeline.service.http.models import Models
    from pipeline.service.http.requests import Limits
    from pipeline.service.http.service import Service
    from pipeline.service.loop.searches import Loop
    from pipeline.service.proxy.search import Hit, Window
    from pipeline.service.record import Record

    rows = range(100)
    first = [20 - row / 7 for row in rows]
    wanted = ScoreRequest(["storm damage on the coast"], ["text"] * 100, [""] * 100, first)
    scores = [Fragment(f"{1 - row / 101:.12f}") for row in rows]

    class Instant(Service):
        async def score(self, *arguments: Any, **options: Any) -> ScoreResponse:
            return ScoreResponse(wanted, "window", "neural", scores, [*rows])

    ids = [str(10**17 + 7919 * row) for row in rows]
    hits = [Hit(0, 0, {"_id": ids[row], "_score": first[row], "_index": "a"}) for row in rows]
    window = Window(wanted.queries[0], 0, SHOWN, ["contents"], None, [], None, b"", None)
    service = Instant(Models(["window"], 10**6), Limits(), 1)

    async def seconds(loop: Loop) -> AsyncIterator[float]:
        for _ in range(options.searches):
            started = time.perf_counter()
            record = Record("", "POST", "")
            await loop.rank(wanted, service.models.default, record, 0, window, hits)
            yield time.perf_counter() - started
            await asyncio.sleep(0.001)

    async def measured(loop: Loop) -> Any:
        return np.array([taken async for taken in seconds(loop)]) * 1000

    gc.freeze()  # As in the service.
    with TemporaryDirectory() as folder:
        log = LogWriter(Path(folder))
        for label, loop in (("without log", Loop(service)), ("with log", Loop(service, log))):
            taken = asyncio.run(measured(loop))
            parts = ", ".join(f"p{p:g} {np.percentile(taken, p):.3f}" for p in (50, 95, 99))
            print(f"{label}: ms a search {parts}")
        log.close()
        print(f"{log.written:,} lines written, {log.dropped:,} dropped")


if __name__ == "__main__":
    run_command(Options, main, "scripts/simulate_clicks.py", __doc__)
